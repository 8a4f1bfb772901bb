#!/usr/bin/env python3
"""Times checkpoints of zeroshard, torch.save, DCP and DeepSpeed, interleaved in one run, beside what the disk can do.

    bench/setup_peers.sh        # once
    bench/checkpoint.py         # writes a table and a JSON file under bench/results/

The processes of all peers live through the whole run, stopped while it is another's turn. Ratios are taken per round,
against a memcpy and O_DIRECT probes of the same bytes in the same round.
"""

import argparse
import json
import os
import shlex
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import checkpoint_report
from checkpoint_peers import CHECKPOINT_SHAPES, PEERS
from checkpoint_probe import drop_cache
from machine import cpu_name
from stepbench.fleet import ROOT, PeerWorld

SEED = 1234
TURNS = 3  # of a probe, and of a save and a load, in one round: the median of them counts
LEAD = 5  # steps beside which a save is written, when its overhead is taken
REST_SECONDS = 1.0  # before anything that is timed: the disk is done with what came before


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", choices=sorted(CHECKPOINT_SHAPES), default="m110")
    parser.add_argument(
        "--train-shape", choices=sorted(CHECKPOINT_SHAPES), default="small", help="overhead and reshard"
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--pairs", type=int, default=20, help="of a few steps with and without a save")
    parser.add_argument("--steps", type=int, default=20, help="steps from save to save")
    parser.add_argument("--peers", default=",".join(PEERS))
    parser.add_argument(
        "--directory", help="where checkpoints go; its file system must know O_DIRECT (default: temporary)"
    )
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds one command to a peer may take")
    parser.add_argument("--peers-python", default=str(ROOT / ".venv-peers/bin/python"))
    parser.add_argument("--zeroshard-python", default=str(ROOT / ".venv/bin/python"))
    parser.add_argument("--out", default=str(ROOT / "bench/results/checkpoint.json"), help="JSON file; .md beside it")
    options = parser.parse_args()
    options.peers = options.peers.split(",")
    unknown = sorted(set(options.peers) - set(PEERS))
    if unknown:
        parser.error(f"no peers: {', '.join(unknown)}; there are {', '.join(PEERS)}")
    if options.rounds < 1 or options.pairs < 1 or options.steps < 1:
        parser.error("--rounds, --pairs and --steps must be at least 1")
    return options


class World(PeerWorld):
    """The ranks of one peer, rank r pinned to core r, one thread each."""

    def __init__(self, peer, world, shape, options, scratch):
        self.shape, self.timeout = shape, options.timeout
        own = peer == "probe" or peer.startswith("zeroshard")
        python = options.zeroshard_python if own else options.peers_python
        if not Path(python).exists():
            raise SystemExit(f"checkpoint.py: {python} does not exist: build zeroshard, run bench/setup_peers.sh")
        super().__init__(peer, python, argparse.Namespace(world=world), scratch)

    def _start(self, python, index, port):
        world = self.options.world
        read_end, write_end = os.pipe()
        cores = sorted(os.sched_getaffinity(0))
        command = [python, "-u", str(ROOT / "bench/checkpoint_worker.py"), "--peer", self.peer, "--shape", self.shape]
        command += ["--seed", str(SEED), "--rank", str(index), "--world", str(world)]
        command += ["--store", str(self.scratch / "store"), "--answers", str(write_end)]
        command += ["--core", str(cores[index % len(cores)])]
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join([str(ROOT / "bench"), str(ROOT / "python")]),
            "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "RANK": str(index), "LOCAL_RANK": str(index),
            "WORLD_SIZE": str(world), "LOCAL_WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port), "DS_ACCELERATOR": "cpu", "CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1",
        }  # fmt: skip
        self._spawn(command, environment, index, read_end, write_end)

    def do(self, command, **arguments):
        time.sleep(REST_SECONDS)
        return self.ask(self.timeout, command=command, **arguments)

    def seconds(self, command, **arguments):
        """Of the slowest rank."""
        return max(answer["seconds"] for answer in self.do(command, **arguments))


def difference(losses, again):
    """The largest of any rank and step, relative. The second loss depends on the moments, too."""
    return max(
        abs(one - other) / abs(one)
        for rank, same in zip(losses, again, strict=True)
        for one, other in zip(rank["losses"], same["losses"], strict=True)
    )


class Race:
    """The main part: save and load of the same model by all peers."""

    def __init__(self, options, scratch, directory):
        self.options, self.directory = options, directory
        self.worlds = {peer: World(peer, 2, options.shape, options, scratch) for peer in options.peers}
        self.probe = World("probe", 2, options.shape, options, scratch)
        self.params = [world.do("setup")[0]["params"] for world in self.worlds.values()][0]
        self.state_bytes = self.params * 12
        self.probe_bytes = -(-self.state_bytes // 2 // 4096) * 4096  # of a rank
        self.probe.do("probe_setup", size=self.probe_bytes)
        self.warmup, self.rounds, self.checks = {}, [], {}

    def run(self):
        self.warmup = self._round(check=True)
        for index in range(self.options.rounds):
            start = time.monotonic()
            self.rounds.append(self._round())
            print(f"round {index + 1}/{self.options.rounds}: {time.monotonic() - start:.1f} s", file=sys.stderr)

    def _probe(self):
        folder = self.directory / "probe"
        seconds = {"memcpy": [], "write": [], "read": []}
        for _ in range(TURNS):
            folder.mkdir()
            seconds["memcpy"].append(self.probe.seconds("probe_memcpy"))
            seconds["write"].append(self.probe.seconds("probe_write", directory=str(folder)))
            drop_cache(folder)
            seconds["read"].append(self.probe.seconds("probe_read", directory=str(folder)))
            shutil.rmtree(folder)
        return {kind: median(turns) for kind, turns in seconds.items()} | {"bytes": 2 * self.probe_bytes}

    def _round(self, check=False):
        result = {"probe": self._probe()}
        for peer, world in self.worlds.items():
            for mode in PEERS[peer].MODES:
                result[mode] = self._save_and_load(world, mode, check)
        result["probe_after"] = self._probe()
        return result

    def _save_and_load(self, world, mode, check):
        folder = self.directory / mode
        turns, loads = [], []
        for turn in range(TURNS):
            turns.append(world.do("save", mode=mode, directory=str(folder)))
            written = drop_cache(folder)
            if written < self.state_bytes:
                raise SystemExit(f"checkpoint.py: {mode} wrote {written} bytes of a state of {self.state_bytes}")
            looks = check and turn == 0
            losses = world.do("losses", steps=2) if looks else None
            loads.append(world.seconds("load", mode=mode, directory=str(folder)))
            if looks:
                self.checks[mode] = difference(losses, world.do("losses", steps=2))
            shutil.rmtree(folder)
        staging = {key: [rank[key] for rank in turns[-1]] for key in turns[-1][0] if key.startswith("staging")}
        slowest = {key: [max(rank[key] for rank in turn) for turn in turns] for key in ("stall", "durable")}
        return staging | {
            "stall": median(slowest["stall"]),
            "durable": median(slowest["durable"]),
            "first_stall": slowest["stall"][0],
            "peak_bytes": max(rank["peak_bytes"] for turn in turns for rank in turn),
            "load": median(loads),
            "bytes": written,
        }

    def stop(self):
        for world in [*self.worlds.values(), self.probe]:
            world.stop()


def measure_overhead(options, scratch, directory):
    """A few steps with a save before them, until it is durable, and without, in turn."""
    world = World("zeroshard", 2, options.train_shape, options, scratch)
    folder = directory / "overhead"
    steps = min(LEAD, options.steps)
    try:
        params = world.do("setup")[0]["params"]
        world.do("train", steps=2, directory=str(folder))
        pairs = []
        for pair in range(options.pairs):
            entry = {}
            for saves in (True, False) if pair % 2 == 0 else (False, True):
                shutil.rmtree(folder, ignore_errors=True)
                answers = world.do("train", steps=steps, directory=str(folder) if saves else None)
                entry["with" if saves else "without"] = max(answer["seconds"] for answer in answers)
                if saves:
                    entry["stall"] = max(answer["stall"] for answer in answers)
            pairs.append(entry)
        shutil.rmtree(folder, ignore_errors=True)  # the last steps may have been those without a save
    finally:
        world.stop()
    return {"params": params, "steps": steps, "interval": options.steps, "pairs": pairs}


def measure_reshard(options, scratch, directory):
    """Saved by 4 ranks, loaded by 2: what is on disk before and after, and whether the parameters are the same."""
    folder = directory / "reshard"
    four = World("zeroshard", 4, options.train_shape, options, scratch)
    try:
        params = four.do("setup")[0]["params"]
        saved = four.do("save", mode="zeroshard", directory=str(folder))
        digest = four.do("digest")[0]["digest"]
    finally:
        four.stop()
    before = drop_cache(folder)
    two = World("zeroshard", 2, options.train_shape, options, scratch)
    try:
        two.do("setup")
        other = two.do("digest")[0]["digest"]
        seconds = two.seconds("load", mode="zeroshard", directory=str(folder))
        loaded = two.do("digest")[0]["digest"]
    finally:
        two.stop()
    after = drop_cache(folder)
    shutil.rmtree(folder)
    return {
        "params": params, "save_seconds": max(answer["durable"] for answer in saved), "load_seconds": seconds,
        "disk_before": before, "disk_after": after, "same": loaded == digest, "differed_before_load": other != digest,
    }  # fmt: skip


def measure(options, scratch, directory):
    machine = {"cpu": cpu_name(), "cores": os.cpu_count(), "load_before": os.getloadavg()[0]}
    race = Race(options, scratch, directory)
    print("all peers are set up", file=sys.stderr)
    try:
        race.run()
    finally:
        race.stop()
    overhead = measure_overhead(options, scratch, directory)
    reshard = measure_reshard(options, scratch, directory)
    machine["load_after"] = os.getloadavg()[0]
    kept = ("shape", "train_shape", "rounds", "pairs", "steps", "peers")
    return {
        "command": shlex.join(["bench/checkpoint.py", *sys.argv[1:]]),
        "options": {name: getattr(options, name) for name in kept},
        "machine": machine,
        "params": race.params,
        "state_bytes": race.state_bytes,
        "warmup": race.warmup,
        "rounds": race.rounds,
        "checks": race.checks,
        "overhead": overhead,
        "reshard": reshard,
    }


def main():
    options = parse_arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that gigabytes of checkpoints do not stay
    with (
        tempfile.TemporaryDirectory(prefix="zeroshard-bench-") as scratch,
        tempfile.TemporaryDirectory(prefix="zeroshard-checkpoints-", dir=options.directory) as directory,
    ):
        result = measure(options, scratch, Path(directory))
    result["figures"] = checkpoint_report.figures(result)
    result["goals"] = checkpoint_report.goals(result)
    out = Path(options.out)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(result, indent=1) + "\n")
    table = checkpoint_report.markdown(result)
    out.with_suffix(".md").write_text(table)
    print(table)
    print(f"written: {out} and {out.with_suffix('.md').name}", file=sys.stderr)
    return 0 if checkpoint_report.correct(result) else 1


if __name__ == "__main__":
    sys.exit(main())
