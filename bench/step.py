#!/usr/bin/env python3
"""Times one training step of zeroshard and its peers, interleaved in one run, and checks that their losses agree.

    bench/setup_peers.sh                      # once
    bench/step.py --shape small --world 2     # writes a table and a JSON file under bench/results/

The processes of all peers live through the whole run, stopped while it is another's turn; round after round each peer
runs a few steps, so that slow drifts of the machine hit all alike. Ratios are taken per round.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path

from machine import cpu_name
from stepbench import report
from stepbench.fleet import ROOT, PeerFailed, PeerWorld
from stepbench.memory import memcpy_gb_per_second
from stepbench.peers import BEFORE, FP32_ONLY, PEERS, UNCONNECTED, UNTRAINED, is_trainer
from stepbench.workload import SHAPES, num_units

POSSIBLE_PEERS = [peer for peer in PEERS if peer != "reference" and not peer.endswith(BEFORE)]
DEFAULT_PEERS = [peer for peer in POSSIBLE_PEERS if not is_trainer(peer)]
TOLERANCE = {"fp32": 1e-5, "bf16": 2e-2}
BASELINES = ("plain_fused", "plain", "trainer", "trainer_deepspeed3")


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", choices=sorted(SHAPES), default="small")
    parser.add_argument("--world", type=int, choices=[1, 2, 4, 8], default=2)
    parser.add_argument("--peers", help="comma-separated (default: all that know the dtype)")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--steps", type=int, default=4, help="steps of a peer in a round")
    parser.add_argument("--warmup", type=int, default=3, help="untimed steps before the rounds")
    parser.add_argument("--dtype", choices=["fp32", "bf16"], default="fp32")
    parser.add_argument("--clip", type=float, default=0.0, help="gradient clipping (default: off)")
    parser.add_argument("--seed", type=int, default=1234)
    parser.add_argument("--pin", action=argparse.BooleanOptionalAction, default=True, help="rank r on core r")
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds one command to a peer may take")
    parser.add_argument("--peers-python", default=str(ROOT / ".venv-peers/bin/python"))
    parser.add_argument("--zeroshard-python", default=str(ROOT / ".venv/bin/python"))
    parser.add_argument("--before-python", help="of an earlier build: --peers zeroshard3,zeroshard3_before")
    parser.add_argument("--out", help="JSON file (default: bench/results/step_SHAPE_DTYPE_worldN.json); .md beside it")
    options = parser.parse_args()
    possible = [peer for peer in POSSIBLE_PEERS if options.dtype == "fp32" or peer not in FP32_ONLY]
    default = [peer for peer in possible if peer in DEFAULT_PEERS]
    options.peers = default if options.peers is None else [name for name in options.peers.split(",") if name]
    before = [name + BEFORE for name in possible if name.startswith("zeroshard")] if options.before_python else []
    unknown = sorted(set(options.peers) - {*possible, *before})
    if unknown:
        parser.error(f"no peers for {options.dtype}: {', '.join(unknown)}; there are {', '.join(possible)}")
    if not options.peers:
        parser.error("--peers is empty")
    if options.rounds < 1 or options.steps < 1 or options.warmup < 0:
        parser.error("--rounds and --steps must be at least 1, --warmup at least 0")
    return options


def python_of(peer, options):
    # The reference is torch alone, so that a comparison of two builds needs no peers.
    ours = "zeroshard" in peer or (peer == "reference" and not Path(options.peers_python).exists())
    python = options.zeroshard_python if ours else options.peers_python
    python = options.before_python if peer.endswith(BEFORE) else python
    if not Path(python).exists():
        hint = "build zeroshard first" if "zeroshard" in peer else "run bench/setup_peers.sh first"
        raise SystemExit(f"step.py: {python} does not exist: {hint}")
    return python


class Race:
    """Owns the worlds of all peers and what they answered."""

    def __init__(self, options, scratch):
        self.options = options
        self.scratch = scratch
        self.worlds, self.setup, self.warmup, self.rounds, self.failed = {}, {}, {}, {}, {}

    def attempt(self, peer, action):
        """Runs `action`; a peer that fails leaves the race, the others go on."""
        try:
            return action()
        except PeerFailed as error:
            self.failed[peer] = str(error)
            print(f"FAILED {error}", file=sys.stderr)
            world = self.worlds.pop(peer, None)
            if world:
                world.stop()
            return None

    def start(self):
        for peer in self.options.peers:
            world = PeerWorld(peer, python_of(peer, self.options), self.options, self.scratch)
            self.worlds[peer] = world
            answer = self.attempt(peer, lambda world=world: world.ask(self.options.timeout, command="setup"))
            if answer is not None:
                self.setup[peer] = answer
                self.rounds[peer] = []
                print(f"ready   {peer}: idle {answer[0]['idle_bytes'] / 1e6:.0f} MB a process", file=sys.stderr)

    def run_round(self, steps, store):
        for peer, world in list(self.worlds.items()):
            answer = self.attempt(peer, lambda w=world: w.ask(self.options.timeout, command="run", steps=steps))
            if answer is not None:
                store(peer, answer)

    def run(self):
        options = self.options
        if options.warmup:
            self.run_round(options.warmup, lambda peer, answer: self.warmup.__setitem__(peer, [answer]))
        for index in range(options.rounds):
            start = time.monotonic()
            self.run_round(options.steps, lambda peer, answer: self.rounds[peer].append(answer))
            print(f"round {index + 1}/{options.rounds}: {time.monotonic() - start:.1f} s", file=sys.stderr)

    def losses(self, peer):
        return report.mean_losses(self.warmup.get(peer, []) + self.rounds[peer])

    def reference_losses(self):
        """Losses of one process that averages over all ranks' micro-batches, for as many steps as the peers took."""
        world = PeerWorld("reference", python_of("reference", self.options), self.options, self.scratch)
        try:
            world.ask(self.options.timeout, command="setup")
            steps = self.options.warmup + self.options.rounds * self.options.steps
            answer = world.ask(self.options.timeout * 4, command="run", steps=steps)
            return report.mean_losses([answer])
        finally:
            world.stop()

    def stop(self):
        for world in self.worlds.values():
            world.stop()
        self.worlds = {}


def check_parity(race, figures):
    """Fills in each peer's distance from the reference and returns the verdict."""
    tolerance = TOLERANCE[race.options.dtype]
    connected = race.reference_losses()
    alone = [peer for peer in race.rounds if peer in UNCONNECTED and peer not in UNTRAINED]
    bad = []
    for entry in figures:
        peer = entry["peer"]
        if peer in UNTRAINED:
            continue
        # A process alone sees rank 0's micro-batches only, which is the reference's data only when there is one rank.
        expected = connected if race.options.world == 1 or peer not in UNCONNECTED else race.losses(alone[0])
        entry["loss_difference"] = report.worst_relative_difference(race.losses(peer), expected)
        entry["final_loss"] = race.losses(peer)[-1]
        if not entry["loss_difference"] <= tolerance:
            bad.append(f"{peer} ({entry['loss_difference']:.2e})")
    verdict = f"NOT within {tolerance:g}: {', '.join(bad)}" if bad else f"all losses of all steps within {tolerance:g}"
    return {"ok": not bad, "tolerance": tolerance, "text": verdict + " (relative) of one unsharded process"}


def measure(options, scratch):
    race = Race(options, scratch)
    kept = ("shape", "world", "peers", "rounds", "steps", "warmup", "dtype", "clip", "seed", "pin")
    result = {"options": {name: getattr(options, name) for name in kept}, "memcpy_gb_s": {}}
    machine = {"cpu": cpu_name(), "cores": os.cpu_count(), "load_before": os.getloadavg()[0]}
    try:
        race.start()
        result["memcpy_gb_s"]["before"] = memcpy_gb_per_second()
        race.run()
        result["memcpy_gb_s"]["after"] = memcpy_gb_per_second()
        machine["load_after"] = os.getloadavg()[0]
    finally:
        race.stop()
    if not race.worlds and not any(race.rounds.values()):
        raise SystemExit("step.py: every peer failed")
    rounds = {peer: answers for peer, answers in race.rounds.items() if len(answers) == options.rounds}
    race.rounds = rounds
    baselines = {
        name: [report.round_seconds(answers) for answers in rounds[name]] for name in BASELINES if name in rounds
    }
    figures = [report.summarize(peer, race.setup[peer], rounds[peer], baselines) for peer in rounds]
    parity = check_parity(race, figures)
    known = {"params": figures[0]["params"], "units": num_units(SHAPES[options.shape])}
    return result | known | {"machine": machine, "peers": figures, "parity": parity, "failed": race.failed}


def main():
    options = parse_arguments()
    with tempfile.TemporaryDirectory(prefix="zeroshard-bench-") as scratch:
        result = measure(options, scratch)
    default = ROOT / f"bench/results/step_{options.shape}_{options.dtype}_world{options.world}.json"
    out = Path(options.out) if options.out else default
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(result, indent=1) + "\n")
    table = report.markdown(result)
    out.with_suffix(".md").write_text(table)
    print(table)
    print(f"written: {out} and {out.with_suffix('.md').name}", file=sys.stderr)
    return 0 if result["parity"]["ok"] and not result["failed"] else 1


if __name__ == "__main__":
    sys.exit(main())
