"""Applies each mutant to a copy of the tree, builds the one test that should notice, and checks that it fails.

    python tests/mutants/run.py [--only NAME ...] [--part 2/6] [--workers N] [--list]

Slow (each mutant is a build): not part of `make test`. Exits with 1 when a mutant survives or no longer applies.
Each worker has a copy of its own; Ctrl-C ends all at once, and removes them. The compiler's cache makes a second run
much faster than the first.
"""

from __future__ import annotations

import argparse
import collections
import concurrent.futures
import contextlib
import os
import pathlib
import queue
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

import activation_mutants
import async_mutants
import checkpoint_mutants
import compat_mutants
import data_mutants
import device_mutants
import disk_mutants
import failure_mutants
import lora_mutants
import memory_mutants
import monitor_mutants
import offload_mutants
import process_mutants
import progress_mutants
import python_mutants
import replica_mutants
import sequence_mutants
import swap_mutants
import tokenizer_mutants
import train_mutants
import unit_mutants
import write_mutants
from mutant import Mutant

ROOT = pathlib.Path(__file__).resolve().parents[2]
COPIED = (
    *("CMakeLists.txt", "VERSION", "cmake", "src", "lm", "include", "tests", "cli", "cli_torch", "python", "bench"),
    *("examples", "docs", "pyproject.toml"),
)
TEST_TIMEOUT_S = 240
LOOK_S = 0.2  # between two looks at the workers
# Programs that build without LibTorch, in a minute.
TORCH_FREE = {
    "layout",
    "placement",
    "plan",
    "schedule",
    "file",
    "checkpoint",
    "no_memory",
    "tokenizer",
    "monitor",
    "data",
}


MUTANTS = [
    Mutant(
        "wait-cycle-read-once",
        "src/comm/wait_graph.cpp",
        " || block.rank(wait.awaited.peer).has_reached(wait.awaited))",
        ")",
        "comm",
        "WaitGraph.RanksThatGoOnAreNeverACycle",
    ),
    Mutant(
        "wait-crossed-one-way",
        "src/comm_c10d/divergence.cpp",
        "a.waits_for(b) && b.waits_for(a)",
        "a.waits_for(b)",
        "comm_c10d",
        "Divergence.ARankThatIsAheadIsNoDifference",
    ),
    Mutant(
        "norm-without-rest",
        "src/kernels/kernels_impl.h",
        "  return {lanes[0], rests[0]};\n",
        "  return {lanes[0], 0};\n",
        "kernels",
        "*/Sum.SquaresDoNotDependOnOrderAndCut/*",
    ),
    Mutant(
        "norm-grid-not-checked",
        "src/kernels/kernels_impl.h",
        "lane < base / 3;",
        "true;",
        "kernels",
        "*/Sum.SquaresOfUnexpectedSizesAreExact/*",
    ),
    Mutant(
        "norm-rest-of-pieces",
        "src/device/math.cpp",
        "    sum.add(piece.rest);\n",
        "",
        "device",
        "Math.SquaresDoNotDependOnTheCutOrOnThreads",
    ),
    Mutant(
        "shard-rounds-down",
        "src/layout/shard_layout.cpp",
        "align_up(ceil_div(end, int64_t{world_size} * parts), kBlockNumel)",
        "align_up(end / (int64_t{world_size} * parts), kBlockNumel)",
        "layout",
        "ShardLayout.OneElementMoreThanFullShardsNeedsAnotherBlock",
    ),
    Mutant(
        "order-ignores-the-unit",
        "src/schedule/execution_order.cpp",
        " && recorded_[position] == unit",
        "",
        "schedule",
        "ExecutionOrder.ADeviationEndsPredictionForTheRestOfThePass",
    ),
    Mutant(
        "sum-below-zero",
        "src/device/exact_sum.cpp",
        "carried.limbs_[kNonFinite - 1] < 0;",
        "false;",
        "device",
        "ExactSum.OneTermIsGivenBackExactly",
    ),
    Mutant(
        "slot-lent-twice",
        "src/device/slot_ring.cpp",
        "    if (slot->lent_) continue;\n",
        "",
        "device",
        "SlotRingTest.LendsEachSlotToOneUserOfItsClass",
    ),
    Mutant(
        "sum-instead-of-mean",
        "src/engine/engine_build.cpp",
        "(config.average_gradients ? world_size : 1)",
        "1",
        "world",
        "Training.AgreesWithPlainAutogradAndAdamW",
    ),
    Mutant(
        "skipped-refresh",
        "src/engine/executor.cpp",
        "    units_[order[started]]->start_refresh();\n",
        "    Unit& unit = *units_[order[started]];\n"
        "    if (unit.placement() != Placement::kReplicated) unit.start_refresh();\n",
        "world",
        "*EveryStageGivesTheSameBitsInThePlannedMemory/1",
    ),
    Mutant(
        "borrowed-for-reading",
        "src/optim/sharded_optimizer.cpp",
        "group.lend(range, Array::Access::kModify",
        "group.lend(range, Array::Access::kRead",
        "optim",
        "*StatesLentInPiecesGiveTheSameBits/*",
    ),
    Mutant(
        "every-part-is-the-first",
        "src/store/storage.cpp",
        "lent.push_back(cut(each, range));",
        "lent.push_back(cut(each, {0, range.size()}));",
        "optim",
        "*StatesLentInPiecesGiveTheSameBits/*",
    ),
    Mutant(
        "master-at-another-position",
        "src/group/sharded_group.cpp",
        "cut(values, part + (updated_.begin - positions.begin))",
        "cut(values, part)",
        "group",
        "ShardedGroup.*",
    ),
    Mutant(
        "update-in-the-order-of-backward",
        "src/reduce/launch_order.cpp",
        "for (auto bucket = buckets_.rbegin(); bucket != buckets_.rend(); ++bucket)",
        "for (auto bucket = buckets_.begin(); bucket != buckets_.end(); ++bucket)",
        "reduce",
        "Reducer.TellsInWhichOrderTheNextForwardPassNeedsUnits",
    ),
    Mutant(
        "one-rank-has-no-shards",
        "src/placement/placement.cpp",
        "return options.world_size > 1 || options.shard_one_rank || from_tier;",
        "return options.world_size > 1 || from_tier;",
        "placement",
        "Place.OneRankMayHaveTheShapeOfShards",
    ),
    Mutant(
        "pieces-from-the-beginning",
        "src/checkpoint/rank_file.cpp",
        "slice.data->read(slice.offset + at, size, piece.data());",
        "slice.data->read(at, size, piece.data());",
        "checkpoint",
        "SlicesElsewhere.AreSavedPieceByPiece",
    ),
    Mutant(
        "neighbours-that-are-none",
        "src/checkpoint/async_saver.cpp",
        " && slice.offset == last.offset + last.bytes;",
        ";",
        "checkpoint",
        "SlicesElsewhere.AreCopiedForASaveInTheBackground",
    ),
    Mutant(
        "full-ring-is-an-error",
        "src/comm/direct_core.cpp",
        "if (!own.has_finished(previous)) read_until(previous + kRing / 2);",
        "",
        "comm",
        "Worlds/Conformance.LocalComm/of2",
    ),
    Mutant(
        "always-resharded",
        "src/engine/executor.cpp",
        "if (!order_->is_next(index)) reshard(index);",
        "reshard(index);",
        "world",
        "Training.CollectivesOfAStepAreAsFewAsCanBe",
    ),
    Mutant(
        "norm-of-one-unit",
        "src/reduce/reducer.cpp",
        "sum.add(bucket.reduced().squares());",
        "sum = bucket.reduced().squares();",
        "reduce",
        "Reducer.SumsInRankOrderAtEveryStage",
    ),
    Mutant(
        "no-zero-fill",
        "src/reduce/grad_bucket.cpp",
        "if (!filling.filled[i]) cut(",
        "if (false) cut(",
        "reduce",
        "Reducer.ParametersWithoutAGradientCountAsZero",
    ),
    Mutant(
        "no-drain",
        "src/reduce/grad_bucket.cpp",
        "if (exchange_) exchange_->drain();",
        "",
        "reduce",
        "Reducer.ABufferIsReusedOnlyWhenEveryRankHasReadIt",
    ),
    Mutant(
        "drained-while-read",
        "src/comm/direct_work.cpp",
        "  wait();\n  core_->await_finished_by_all(op_);",
        "  wait();",
        "comm",
        "*Conformance*",
    ),
    Mutant(
        "own-launch-order",
        "src/reduce/reducer.cpp",
        "  launch_ready();\n}",
        "  launch(index, /*with_local=*/true);\n}",
        "reduce",
        "Reducer.GradientsMayArriveInAnotherOrderOnEachRank",
    ),
    Mutant(
        "lost-second-reduction",
        "src/reduce/grad_bucket.cpp",
        "if (reduced_.are_current() && place_.reduces_in_place()) {",
        "if (false) {",
        "reduce",
        "Reducer.UnannouncedBackwardPassesAreAddedToo",
    ),
    Mutant(
        "no-accumulation",
        "src/reduce/reduced_gradients.cpp",
        "out, are_current_, squares_here());\n  };",
        "out, false, squares_here());\n  };",
        "reduce",
        "Reducer.BackwardPassesOfAStepAreAdded",
    ),
    Mutant(
        "stale-local-sum",
        "src/reduce/own_sum.cpp",
        "if (!std::exchange(used_, true)) values().zero_();",
        "used_ = true;",
        "reduce",
        "Reducer.NoSyncKeepsThisRanksOwnSum",
    ),
    Mutant(
        "skipped-cast",
        "src/optim/sharded_optimizer.cpp",
        "buffers.param = own_master ? param : nullptr;",
        "buffers.param = nullptr;",
        "optim",
        "ShardedOptimizer.ParametersAreTheRoundedMasters",
    ),
    Mutant(
        "update-without-gradient",
        "src/optim/sharded_optimizer.cpp",
        "if (!has_grad[i] || param_group < 0) continue;",
        "if (param_group < 0) continue;",
        "optim",
        "*AgreesWithLibTorchParameterByParameter/0",
    ),
    Mutant(
        "merged-param-groups",
        "src/optim/sharded_optimizer.cpp",
        "result.back().param_group == param_group && ",
        "",
        "optim",
        "*AgreesWithLibTorchParameterByParameter/*",
    ),
    Mutant(
        "wrong-ranks-slice",
        "src/group/sharded_group.cpp",
        "at::Tensor from = cut(values, both - positions.begin);",
        "at::Tensor from = cut(values, {0, both.size()});",
        "unit",
        "Unit.EveryRankHasTheValuesOfRankZeroAfterEveryRoundTrip",
    ),
    *activation_mutants.MUTANTS,
    *async_mutants.MUTANTS,
    *device_mutants.MUTANTS,
    *checkpoint_mutants.MUTANTS,
    *compat_mutants.MUTANTS,
    *data_mutants.MUTANTS,
    *disk_mutants.MUTANTS,
    *failure_mutants.MUTANTS,
    *lora_mutants.MUTANTS,
    *memory_mutants.MUTANTS,
    *monitor_mutants.MUTANTS,
    *offload_mutants.MUTANTS,
    *process_mutants.MUTANTS,
    *progress_mutants.MUTANTS,
    *python_mutants.MUTANTS,
    *replica_mutants.MUTANTS,
    *sequence_mutants.MUTANTS,
    *swap_mutants.MUTANTS,
    *tokenizer_mutants.MUTANTS,
    *train_mutants.MUTANTS,
    *unit_mutants.MUTANTS,
    *write_mutants.MUTANTS,
]

# The installed package is found by an import hook; the tests of a mutant need the tree's own.
WITHOUT_INSTALLED_PACKAGE = """import sys
sys.meta_path[:] = [finder for finder in sys.meta_path if not type(finder).__name__.startswith("ScikitBuild")]
"""


class Programs:
    """Those that run now. Once told to stop, it ends them and starts no other."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: set[subprocess.Popen] = set()
        self._stopped = False

    def run(self, command: list[str], timeout: float | None = None, **options) -> subprocess.CompletedProcess[str]:
        options |= {"text": True, "errors": "replace", "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        with self._lock:
            if self._stopped:
                raise InterruptedError
            process = subprocess.Popen(command, start_new_session=True, **options)
            self._running.add(process)
        try:
            output = process.communicate(timeout=timeout)[0]
        except BaseException:
            self._end(process)
            raise
        finally:
            with self._lock:
                self._running.remove(process)
        if self._stopped:
            raise InterruptedError
        return subprocess.CompletedProcess(command, process.returncode, output)

    def stop(self) -> None:
        with self._lock:
            self._stopped = True
            for process in self._running:
                self._kill(process)

    def _end(self, process: subprocess.Popen) -> None:
        self._kill(process)
        process.communicate()  # until all that it had started has ended, too

    @staticmethod
    def _kill(process: subprocess.Popen) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


PROGRAMS = Programs()
run = PROGRAMS.run


class Tree:
    """A copy of the sources, built on its own as far as `programs` need it."""

    def __init__(self, path: pathlib.Path, programs: set[str]) -> None:
        self.path = path
        path.mkdir()
        for name in COPIED:
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, path / name, ignore=shutil.ignore_patterns("__pycache__", "*.so", "build"))
            elif source.exists():
                shutil.copy2(source, path / name)
        self.env = os.environ | {"CCACHE_BASEDIR": str(path), "CCACHE_NOHASHDIR": "1"}
        self.env["CXX"] = run([str(ROOT / "tools" / "compiler.sh")]).stdout.strip()
        if "python" in programs:
            self.use_own_package()
        if programs - {"python"}:
            self.configure(with_torch=not programs <= TORCH_FREE | {"python"})

    def configure(self, with_torch: bool) -> None:
        command = ["cmake", "-S", str(self.path), "-B", str(self.path / "build"), "-G", "Ninja"]
        options = {"CMAKE_BUILD_TYPE": "Release", "Python_EXECUTABLE": sys.executable}
        options["ZEROSHARD_UNITY"] = "OFF"  # a mutant changes one file
        options["ZEROSHARD_WITH_TORCH"] = "ON" if with_torch else "OFF"
        command += [f"-D{name}={value}" for name, value in options.items()]
        command += shlex.split(os.environ.get("CMAKE_ARGS", ""))
        command.append("-DZEROSHARD_WERROR=OFF")  # what a mutant leaves unused is no error
        result = run(command, env=self.env)
        if result.returncode != 0:
            raise SystemExit(result.stdout)

    def use_own_package(self) -> None:
        """Python finds the tree's package, with the installed compiled part."""
        python = self.path / "python"
        (python / "sitecustomize.py").write_text(WITHOUT_INSTALLED_PACKAGE)
        where = run([sys.executable, "-c", "import zeroshard; print(zeroshard._C.__file__)"]).stdout.strip()
        core = python / "zeroshard" / "cores" / pathlib.Path(where).parent.name
        core.mkdir(parents=True)
        shutil.copy2(where, core)
        self.env |= {"PYTHONPATH": str(python), "PYTHONDONTWRITEBYTECODE": "1"}
        self.env.setdefault("ZEROSHARD_BUILD_DIR", str(ROOT / "build" / "release"))  # the programs that tests start
        ask = [sys.executable, "-c", "import zeroshard; print(zeroshard.__file__)"]
        where = run(ask, env=self.env).stdout.strip()
        if where != str(python / "zeroshard" / "__init__.py"):
            raise SystemExit(f"the package under test would be {where}")

    def build(self, *programs: str, jobs: int = 1) -> str | None:
        """The compiler's messages when the build failed."""
        targets = [f"test_{program}" for program in programs if program != "python"]
        if not targets:
            return None
        result = run(["ninja", "-C", str(self.path / "build"), f"-j{jobs}", *targets], env=self.env)
        return None if result.returncode == 0 else result.stdout[-3000:]

    def outcome(self, program: str, test: str) -> str:
        """passed, failed, or timed out: a busy machine may be the reason of that."""
        if program == "python":
            command = [sys.executable, "-m", "pytest", "-q", "-x", test]
        else:
            command = [str(self.path / "build" / "tests" / f"test_{program}"), f"--gtest_filter={test}"]
            command.append("--gtest_brief=1")
        try:
            result = run(command, timeout=TEST_TIMEOUT_S, env=self.env, cwd=self.path)
        except subprocess.TimeoutExpired:
            return "timed out"
        if "] 0 tests from" in result.stdout or (program == "python" and result.returncode not in (0, 1)):
            raise SystemExit(f"test_{program} has no test '{test}':\n{result.stdout[-2000:]}")
        if program == "python" and result.returncode == 0 and " passed" not in result.stdout:
            raise SystemExit(f"{test} is skipped, which shows nothing: `make build` first")
        return "passed" if result.returncode == 0 else "failed"

    def check_without_mutants(self, program: str, tests: list[str]) -> None:
        """A test that fails anyway shows nothing."""
        if messages := self.build(program):
            raise SystemExit(f"test_{program} does not build without mutants:\n{messages}")
        for test in tests:
            if (outcome := self.outcome(program, test)) != "passed":
                raise SystemExit(f"test_{program} {test} {outcome} without mutants")

    def check(self, mutant: Mutant) -> str:
        """killed, killed (by a time-out), or what is wrong."""
        file = self.path / mutant.file
        text = file.read_text()
        if text.count(mutant.old) != 1:
            return f"the text to replace occurs {text.count(mutant.old)} times in {mutant.file}"
        file.write_text(text.replace(mutant.old, mutant.new))
        try:
            if messages := self.build(mutant.program):
                return f"does not compile:\n{messages}"
            outcomes = {"passed": "SURVIVED", "failed": "killed", "timed out": "killed (by a time-out)"}
            return outcomes[self.outcome(mutant.program, mutant.test)]
        finally:
            file.write_text(text)


def tell(line: str) -> None:
    """Prints a whole line at once: ``print`` of two threads may mix theirs."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def check_all(chosen: list[Mutant], workers: int, path: pathlib.Path) -> int:
    """Prints a line for each mutant; how many were not killed."""
    # Those of one file one after the other: then the file is not compiled in between as it was.
    batches = collections.defaultdict(list)
    for mutant in chosen:
        batches[mutant.program, mutant.file].append(mutant)
    waiting: queue.SimpleQueue[tuple[str, list[Mutant]]] = queue.SimpleQueue()
    for (program, _), batch in sorted(batches.items(), key=lambda item: (item[0][0] == "python", item[0])):
        waiting.put((program, batch))
    programs = {mutant.program for mutant in chosen}
    trees = [Tree(path / str(worker), programs) for worker in range(workers)]
    if messages := trees[0].build(*sorted(programs), jobs=workers):  # the others' are in the compiler's cache then
        raise SystemExit(f"does not build without mutants:\n{messages}")

    def work(tree: Tree) -> int:
        failures = 0
        try:
            while True:
                program, batch = waiting.get_nowait()
                tree.check_without_mutants(program, list(dict.fromkeys(mutant.test for mutant in batch)))
                for mutant in batch:
                    begun = time.monotonic()
                    result = tree.check(mutant)
                    failures += not result.startswith("killed")
                    tell(f"{mutant.name:48} {result} ({time.monotonic() - begun:.0f} s)")
        except queue.Empty:
            return failures
        except BaseException:
            with contextlib.suppress(queue.Empty):
                while True:  # the other workers stop, too
                    waiting.get_nowait()
            raise

    with concurrent.futures.ThreadPoolExecutor(workers) as pool:
        try:
            waited_for = {pool.submit(work, tree) for tree in trees}
            failures = 0
            while waited_for:
                # Not without end: Python does not notice Ctrl-C that comes just before it waits for a lock.
                done, waited_for = concurrent.futures.wait(waited_for, LOOK_S, concurrent.futures.FIRST_EXCEPTION)
                failures += sum(each.result() for each in done)
            return failures
        except BaseException:
            PROGRAMS.stop()
            raise


def part_of(text: str) -> tuple[int, int]:
    part, parts = map(int, text.split("/"))
    if not 1 <= part <= parts:
        raise ValueError(text)
    return part, parts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", metavar="NAME", help="a whole name or its beginning")
    parser.add_argument(
        "--part", type=part_of, default=(1, 1), metavar="I/N", help="the I-th of N parts of about one length"
    )
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--list", action="store_true")
    arguments = parser.parse_args()
    chosen = [mutant for mutant in MUTANTS if not arguments.only or mutant.name.startswith(tuple(arguments.only))]
    if not chosen or arguments.workers < 1:
        parser.error(f"no mutant's name begins so: {arguments.only}" if not chosen else "--workers is at least 1")
    part, parts = arguments.part
    chosen.sort(key=lambda mutant: (mutant.program, mutant.file))  # those of one file in one part
    chosen = chosen[len(chosen) * (part - 1) // parts : len(chosen) * part // parts]
    if arguments.list:
        for mutant in chosen:
            print(f"{mutant.name:36} {mutant.program:10} {mutant.test}")
        return 0
    with tempfile.TemporaryDirectory(prefix="zeroshard-mutants-") as path:
        failures = check_all(chosen, min(arguments.workers, len(chosen)), pathlib.Path(path))
    print(f"{len(chosen) - failures} of {len(chosen)} mutants killed")
    return 1 if failures else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("interrupted")
