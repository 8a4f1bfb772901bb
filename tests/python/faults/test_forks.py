"""Forked children of a rank: they may hold what it has, and use nothing of it that speaks for the rank."""

import contextlib
import json
import multiprocessing
import os
import signal
import subprocess
import sys

import pytest
import torch
import world
import zeroshard
from built import TESTS
from models import DTYPES, own_loss, stack_engine, train, vectors

pytestmark = pytest.mark.fault


def in_child(body):
    """What `body` returned or raised in a forked child, as text, and the child's exit code (negative: a signal)."""
    receiver, sender = os.pipe()
    pid = os.fork()
    if pid == 0:
        signal.alarm(60)  # one that hangs is named by its code
        try:
            answer = body()
        except Exception as error:  # noqa: BLE001 (told)
            answer = f"{type(error).__name__}: {error}"
        os.write(sender, json.dumps(answer).encode())
        os._exit(7)
    os.close(sender)
    with open(receiver) as pipe:
        answer = json.loads(pipe.read() or "null")
    return answer, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


CALLS = {
    "forward": lambda engine, folder: engine(vectors(0, 0, 2)[0].to(next(engine.parameters()).dtype)),
    "step": lambda engine, folder: train(engine, [9], own_loss),
    "gathered": lambda engine, folder: zeroshard.gathered(list(engine.parameters())).__enter__(),
    "save": lambda engine, folder: engine.save_checkpoint(folder),
    "load": lambda engine, folder: engine.load_checkpoint(folder),
    "weights": lambda engine, folder: engine.save_16bit_model(folder),
}


def child_calls(stage, dtype, transport, folder):
    engine = stack_engine(stage, dtype, transport)
    train(engine, range(2), own_loss)
    answers = []
    for name, call in CALLS.items() if engine.rank() == engine.world_size() - 1 else ():
        answers.append([name, *in_child(lambda call=call: str(call(engine, f"{folder}/ckpt")))])
    train(engine, range(2, 4), own_loss)
    return answers, engine.parameter_digest()


def undisturbed(stage, dtype, transport):
    engine = stack_engine(stage, dtype, transport)
    train(engine, range(4), own_loss)
    return engine.parameter_digest()


def cases(release):
    if release:
        return [(n, stage, dtype) for n in (1, 2, 3, 4) for stage in range(4) for dtype in DTYPES]
    return [(2, 0, "fp32"), (2, 3, "bf16"), (3, 1, "fp32"), (4, 2, "fp16"), (1, 3, "fp32")]


@pytest.mark.row("K10")
def test_a_forked_child_that_calls_the_engine_is_refused(tmp_path, release):
    for ranks, stage, dtype in cases(release):
        for transport in ("auto", "process_group") if release or (ranks, stage) == (2, 3) else ("auto",):
            case = {"stage": stage, "dtype": dtype, "transport": transport}
            results = world.run(ranks, child_calls, **case, folder=str(tmp_path))
            for name, answer, code in results[-1][0]:
                assert "StateError: " in answer and f"is a fork of rank {ranks - 1} (process" in answer, (case, name)
                assert "whose engine this is" in answer and code == 7, (case, name, answer, code)
            expected = world.run(ranks, undisturbed, **case)
            assert [digest for _, digest in results] == expected, case


def child_initializes():
    engine = stack_engine(2, "fp32")
    train(engine, range(2), own_loss)
    answer = in_child(lambda: str(stack_engine(2, "fp32"))) if engine.rank() == 1 else None
    train(engine, range(2, 4), own_loss)
    return answer


def test_a_forked_child_makes_no_engine_over_its_parents_groups():
    answer, code = world.run(2, child_initializes)[1]
    assert "StateError: " in answer and "is a fork of rank 1" in answer and "process groups" in answer, answer
    assert code == 7


SCRIPT = """
import os, signal, sys
sys.path.insert(0, {here!r})
import torch, zeroshard
from models import own_loss, stack_engine, train
stage, dtype, transport, end = int(sys.argv[1]), *sys.argv[2:]
engine = stack_engine(stage, dtype, transport)
train(engine, range(2), own_loss)
if end == "save":
    engine.save_checkpoint(os.environ["FOLDER"])
codes = []
for _ in range(2):
    pid = os.fork()
    if pid == 0:
        signal.alarm(60)
        if end == "raise":
            raise RuntimeError("of the child")
        if end == "del":
            del engine
        sys.exit(7)
    codes.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
train(engine, range(2, 4), own_loss)
print("codes", codes, engine.parameter_digest(), flush=True)
"""


def run_script(tmp_path, ranks, *arguments):
    script = tmp_path / "forking.py"
    script.write_text(SCRIPT.format(here=str(TESTS)))
    port, claim = world.reserve_port()
    with claim:
        ranks = [
            subprocess.Popen(
                [sys.executable, script, *map(str, arguments)],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                env=os.environ
                | {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks), "FOLDER": str(tmp_path)}
                | {"LOCAL_WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)},
            )
            for rank in range(ranks)
        ]
        try:
            return [(rank.communicate(timeout=120)[0], rank.returncode) for rank in ranks]
        finally:
            for rank in ranks:
                with contextlib.suppress(ProcessLookupError):
                    rank.kill()


@pytest.mark.row("K10")
def test_a_forked_child_ends_by_itself(tmp_path, release):
    ends = {"exit": 7, "raise": 1, "del": 7, "save": 7}
    wanted = [(2, 3, "fp32", "auto", end) for end in ends]
    wanted += [(1, 1, "fp16", "auto", "exit"), (2, 0, "bf16", "process_group", "exit"), (4, 2, "bf16", "auto", "del")]
    if release:
        # Each with one end, in turn: a job starts as many interpreters as it has ranks.
        turns = [list(ends)[(index + index // 12) % 4] for index in range(len(cases(True)))]
        wanted = [(*case, "auto", end) for case, end in zip(cases(True), turns, strict=True)]
        wanted += [(2, stage, "fp32", "process_group", end) for stage in range(4) for end in ends]
    for ranks, *arguments in wanted:
        results = run_script(tmp_path, ranks, *arguments)
        digests = set()
        for output, code in results:
            assert code == 0, (ranks, arguments, results)
            line = next(line for line in output.splitlines() if line.startswith("codes "))
            expected = ends[arguments[-1]]
            assert line.startswith(f"codes [{expected}, {expected}] "), (ranks, arguments, output)
            digests.add(line.split()[-1])
            if arguments[-1] == "raise":
                assert output.count("RuntimeError: of the child") == 2, output
        assert len(digests) == 1, (ranks, arguments, results)


class Numbers(torch.utils.data.Dataset):
    def __init__(self, engine):
        self.engine = engine  # held, as by a dataset that knows its tokenizer's model

    def __len__(self):
        return 24

    def __getitem__(self, index):
        return vectors(index, 0, 1)[0][0], vectors(index, 0, 1)[1][0]


def data_loader_workers(stage):
    engine = stack_engine(stage, "fp32")
    multiprocessing.current_process()._config["daemon"] = False  # the rank's, which lets it have no children
    loader = torch.utils.data.DataLoader(
        Numbers(engine), batch_size=2, num_workers=2, multiprocessing_context=multiprocessing.get_context("fork")
    )
    losses = []
    for x, y in loader:
        loss = torch.nn.functional.mse_loss(engine(x), y)
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    return len(losses), engine.parameter_digest()


@pytest.mark.row("K10")
def test_workers_of_a_data_loader_are_unharmed(release):
    for ranks, stage in [(n, s) for n in (1, 2, 3, 4) for s in range(4)] if release else [(2, 3), (1, 1)]:
        results = world.run(ranks, data_loader_workers, stage=stage)
        assert results == [results[0]] * ranks and results[0][0] == 12
