#!/usr/bin/env python3
"""One training step of a Llama with offload on one rank, beside FSDP2 with CPUOffloadPolicy, in turns.

    bench/offload_gpu.py --shape 1.3b --rounds 3 --steps 2
    bench/offload_gpu.py --device cpu --small # only shows that it runs

FSDP2 keeps fp32 weights, gradients and moments in host memory, as `zeroshard_offload` does with bf16 weights
and gradients beside fp32 master weights; both update on all threads. `zeroshard_offload_states` leaves weights on the
device, `zeroshard_offload_delayed` updates it beside the next step, `zeroshard` leaves all there, and
`zeroshard_offload_file` has its states in a file where TMPDIR says, with a model of 125 M.
FSDP2 is built once for each shape. A ratio is taken within a round, times are from an idle device to an idle device.
Losses must agree, but for delayed updates. On a CPU nothing is offloaded but to the file: all is in host memory
already.
"""

import gc
import os
import sys

import step_gpu
import torch
from gpubench import results
from gpubench.llama import SHAPES
from gpubench.measuring import (
    copy_bandwidth,
    parse_arguments,
    seconds_of,
    to_device_bandwidth,
    to_host_bandwidth,
)

BASE = "fsdp2_offload"
GOAL, GOAL_OF = 1.0, "zeroshard_offload"
STATES = "zeroshard_offload_states"
DELAYED = "zeroshard_offload_delayed"  # other losses; not on a CPU, which has to do both
FILE, FILE_SHAPE = "zeroshard_offload_file", "125m"  # 24 bytes a parameter pass the disk in each step
ROWS = f"{GOAL_OF},{STATES},{DELAYED},zeroshard,{FILE}"
SHORT = ("zeroshard", FILE)  # two rounds of one step
UPDATE_BYTES = 3 * 8 + 2 + 2  # fp32 states read and written, a bf16 gradient read, a bf16 weight written


class Runner(step_gpu.Runner):
    """Warm. `peak_gigabytes`: the most that torch had allocated on the device meanwhile, less what it had before."""

    def __init__(self, name, shape, device):
        before = torch.cuda.memory_allocated() if device.type == "cuda" else 0
        super().__init__(name, shape, device)
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        self.seconds(2)
        peak = torch.cuda.max_memory_allocated() if device.type == "cuda" else 0
        self.peak_gigabytes = (peak - before) / 1e9

    def phases(self):
        """Milliseconds of forward and backward, and of the update, each from idle to idle."""
        batch = self.batches[self.steps % 4]
        passed = seconds_of(self.device, lambda: self.losses.append(self.peer.backward(batch)))
        updated = seconds_of(self.device, self.peer.update)
        self.steps += 1
        return [passed * 1e3, updated * 1e3]

    def close(self):
        self.peer.close()
        self.peer = None
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()


def race(base, name, rounds, steps):
    """`name` and the base in turns."""
    own = Runner(name, base.shape, base.device)
    base_ms, own_ms, ratio = step_gpu.take_turns(base, own, rounds, steps)
    figures = {
        "base_ms": base_ms,
        "ms": own_ms,
        "ratio": ratio,
        "base_phases_ms": base.phases(),
        "phases_ms": own.phases(),
        "peak_gigabytes": own.peak_gigabytes,
        "base_peak_gigabytes": base.peak_gigabytes,
        "loss_difference": step_gpu.worst_difference(own.losses, base.losses[: len(own.losses)]),
        "numel": sum(param.numel() for param in base.peer.model.parameters()),
    }
    own.close()
    return figures


def measure_machine(arguments):
    """Bandwidths, so that times can be judged."""
    device, small = arguments.place, arguments.small
    return {
        "threads": torch.get_num_threads(),
        "to_device_gb_s": to_device_bandwidth(device, small) / 1e9,
        "to_host_gb_s": to_host_bandwidth(device, small) / 1e9,
        "host_copy_gb_s": copy_bandwidth(torch.device("cpu"), small) / 1e9,
    }


def main():
    arguments = parse_arguments(__doc__, shape="1.3b", rounds=3, steps=2, peers=ROWS)
    # One pool of torch's threads serves both. Under a launcher it may have one thread.
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    name = "small" if arguments.small else arguments.shape
    figures, base, base_shape = {"machine": measure_machine(arguments), "peers": {}}, None, None
    for peer in arguments.peers.split(","):
        if peer == DELAYED and arguments.place.type == "cpu":
            continue
        wanted = FILE_SHAPE if peer == FILE and not arguments.small else name
        if wanted != base_shape:
            if base is not None:
                base.close()
            base, base_shape = Runner(BASE, SHAPES[wanted], arguments.place), wanted
        short = arguments.small or peer in SHORT
        measured = race(base, peer, *((2, 1) if short else (arguments.rounds, arguments.steps)))
        figures["peers"][peer] = {"shape": wanted, **measured}
        write(arguments, name, figures)
    base.close()
    torch.distributed.destroy_process_group()
    compared = [each["loss_difference"] for peer, each in figures["peers"].items() if peer != DELAYED]
    return 0 if all(difference <= step_gpu.TOLERANCE for difference in compared) else 1


def write(arguments, name, figures):
    rows = []
    for peer, each in figures["peers"].items():
        low, middle, high = each["ratio"]
        told = results.verdict(arguments, middle, GOAL) if peer == GOAL_OF else f"{middle:.3g}"
        rows.append([f"{peer}, {each['shape']}", f"{each['ms']:.1f}", f"{each['base_ms']:.1f}"])
        rows[-1] += [f"{told}, {low:.3f} to {high:.3f}"]
        rows[-1] += [" + ".join(f"{part:.1f}" for part in each[key]) for key in ("phases_ms", "base_phases_ms")]
        rows[-1] += [f"{each['peak_gigabytes']:.2f} / {each['base_peak_gigabytes']:.2f}"]
        rows[-1] += [f"{each['loss_difference']:.1e}"]
    header = ["peer", "ms a step", "FSDP2 beside it", "ratio, quartiles", "passes + update, ms", "FSDP2's"]
    header += ["peak GB / FSDP2's", "losses differ by"]
    told = [results.table(header, rows), _told_of_machine(arguments, figures["machine"])]
    if STATES in figures["peers"]:
        told.append(_told_of_update(figures["machine"], figures["peers"][STATES]))
    results.write(arguments, f"offload {name}", figures, "\n\n".join(told))


def _told_of_machine(arguments, known):
    told = f"Pinned copies: {known['to_device_gb_s']:.1f} GB/s to the device, {known['to_host_gb_s']:.1f} to the host. "
    told += f"A copy in host memory reads and writes {known['host_copy_gb_s']:.1f} GB/s. {known['threads']} threads."
    if arguments.device == "cpu":
        told += " Device and host are the same CPU: FSDP2 copies within memory, zeroshard has nothing to offload."
    return told


def _told_of_update(known, states):
    least = states["numel"] * UPDATE_BYTES / known["host_copy_gb_s"] / 1e6
    passes, update = states["phases_ms"]
    return (
        f"A step of {STATES}: {passes:.1f} ms of forward, backward and gradients to the host, {update:.1f} ms of "
        f"update and weights to the device; a copy of as many bytes as the update moves takes {least:.1f} ms."
    )


if __name__ == "__main__":
    sys.exit(main())
