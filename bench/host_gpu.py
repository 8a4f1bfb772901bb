#!/usr/bin/env python3
"""Time of the host per unit: what zeroshard adds to forward, backward and step of many small layers, each a unit.

    bench/host_gpu.py
    bench/host_gpu.py --device cpu --small # only shows that it runs

The layers are so small that the device always waits for the host. The column `tail` shows it: how long the device
still worked after the host had given it all, per unit. The time of a unit is the difference to plain eager PyTorch,
in turns, over the units.
"""

import statistics
import sys

import torch
from gpubench import results
from gpubench.llama import Wide, build
from gpubench.measuring import host_seconds_of, parse_arguments
from gpubench.peers import PEERS

GOAL_US = 10
PHASES = ("pass", "step")


def measure(peers, batch, device, rounds):
    """Seconds by peer and phase, and the tail of the pass."""
    times = {name: {"pass": [], "step": [], "tail": []} for name in peers}
    for number in range(rounds + 2):
        for name, peer in peers.items():
            given, done = host_seconds_of(device, lambda peer=peer: peer.backward(batch))
            _, updated = host_seconds_of(device, peer.update)
            if number >= 2:
                for phase, value in (("pass", given), ("tail", done - given), ("step", updated)):
                    times[name][phase].append(value)
    return {name: {phase: statistics.median(each) for phase, each in mine.items()} for name, mine in times.items()}


def main():
    arguments = parse_arguments(__doc__, units=300, rounds=15)
    if arguments.small:
        arguments.units, arguments.rounds = 6, 2
    device, units, rows, figures = arguments.place, arguments.units, [], {"units": arguments.units}
    names = ["plain", "zeroshard", "zeroshard_sharded", "fsdp2"]
    peers = {name: PEERS[name](build(lambda: Wide(units), device)) for name in names}
    batch = torch.randn(16, 64, device=device).bfloat16()
    times = measure(peers, batch, device, arguments.rounds)
    for name in names:
        of_unit = {phase: times[name][phase] / units * 1e6 for phase in (*PHASES, "tail")}
        more = {phase: of_unit[phase] - times["plain"][phase] / units * 1e6 for phase in PHASES}
        figures[name] = {"us_per_unit": of_unit, "us_per_unit_above_plain": more}
        told = (
            results.verdict(arguments, more["pass"], GOAL_US) if name.startswith("zeroshard") else f"{more['pass']:.3g}"
        )
        rows.append([name, *(f"{of_unit[phase]:.2f}" for phase in (*PHASES, "tail")), told, f"{more['step']:.2f}"])
    header = ["peer", "pass, us a unit", "step, us a unit", "tail, us a unit", "pass above plain", "step above plain"]
    results.write(arguments, "host time", figures, results.table(header, rows))
    for peer in peers.values():
        peer.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
