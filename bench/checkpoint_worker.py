"""One process of one peer of bench/checkpoint.py: reads commands and writes answers, one line of JSON each."""

import argparse
import json
import os
import sys
import time
import traceback

import checkpoint_peers
from checkpoint_probe import Probe
from stepbench import memory
from stepbench.peers import Context
from stepbench.workload import build_model, make_batch


def timed(action):
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


class Worker:
    """One rank of a peer."""

    def __init__(self, arguments):
        import torch

        self.arguments = arguments
        torch.set_num_threads(1)
        torch.distributed.init_process_group(
            "gloo", init_method=f"file://{arguments.store}", rank=arguments.rank, world_size=arguments.world
        )
        self.barrier = torch.distributed.barrier
        self.step_index = 0

    def setup(self):
        args = self.arguments
        shape = self.shape = checkpoint_peers.CHECKPOINT_SHAPES[args.shape]
        model = build_model(shape, args.seed, "fp32")
        params = sum(p.numel() for p in model.parameters())
        context = Context(args.rank, args.world, "fp32", 0.0, shape.batch)
        self.peer = checkpoint_peers.PEERS[args.peer](model, context)
        self.step()
        return {"params": params}

    def step(self):
        batch = make_batch(self.shape, self.arguments.seed, self.step_index, self.arguments.rank)
        self.step_index += 1
        return float(self.peer.step(batch))

    def save(self, mode, directory):
        """After a step, as in training: a process that slept has lost pages of its code to the others' files."""
        self.step()
        memory.release_unused()
        before = memory.status_bytes("VmRSS")
        memory.reset_peak()
        self.barrier()
        start = time.perf_counter()
        self.peer.save(mode, directory)
        stall = time.perf_counter() - start
        self.peer.wait()
        durable = time.perf_counter() - start
        answer = {"stall": stall, "durable": durable, "peak_bytes": memory.status_bytes("VmHWM") - before}
        if hasattr(self.peer, "staging"):
            answer["staging_planned"], answer["staging_measured"] = self.peer.staging()
        return answer

    def load(self, mode, directory):
        self.barrier()
        return {"seconds": timed(lambda: self.peer.load(mode, directory))}

    def losses(self, steps):
        """Losses of the next steps; the batches are the same in each call."""
        self.step_index = 0
        return {"losses": [self.step() for _ in range(steps)]}

    def train(self, steps, directory):
        """Seconds of `steps` steps; with a directory: of a save and that many steps, until it is durable."""
        self.barrier()
        start = time.perf_counter()
        if directory:
            self.peer.save("zeroshard", directory)
        stall = time.perf_counter() - start
        for _ in range(steps):
            self.step()
        if directory:
            self.peer.wait()
        return {"seconds": time.perf_counter() - start, "stall": stall}

    def digest(self):
        return {"digest": self.peer.digest()}

    def probe_setup(self, size):
        self.probe = Probe(size)
        return {}

    def probe_memcpy(self):
        self.barrier()
        return {"seconds": self.probe.memcpy()}

    def probe_write(self, directory):
        self.barrier()
        return {"seconds": self.probe.write(os.path.join(directory, f"probe{self.arguments.rank}"))}

    def probe_read(self, directory):
        self.barrier()
        return {"seconds": self.probe.read(os.path.join(directory, f"probe{self.arguments.rank}"))}


COMMANDS = (
    "setup", "save", "load", "losses", "train", "digest", "probe_setup", "probe_memcpy", "probe_write", "probe_read",
)  # fmt: skip


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--peer", required=True)
    parser.add_argument("--shape", required=True, choices=sorted(checkpoint_peers.CHECKPOINT_SHAPES))
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--world", type=int, required=True)
    parser.add_argument("--store", required=True)
    parser.add_argument("--answers", type=int, required=True)
    parser.add_argument("--core", type=int, default=-1)
    arguments = parser.parse_args()
    if arguments.core >= 0:
        os.sched_setaffinity(0, {arguments.core})
    worker = Worker(arguments)
    with os.fdopen(arguments.answers, "w", buffering=1) as answers:
        for line in sys.stdin:
            command = json.loads(line)
            name = command.pop("command")
            if name == "exit":
                break
            try:
                if name not in COMMANDS:
                    raise ValueError(f"unknown command {name!r}")
                answer = getattr(worker, name)(**command)
            except Exception as error:
                traceback.print_exc()
                answer = {"error": f"{type(error).__name__}: {error}"}
            answers.write(json.dumps(answer) + "\n")
    sys.stdout.flush()
    os._exit(0)  # libraries may hold threads that never end; nothing is left to save


if __name__ == "__main__":
    main()
