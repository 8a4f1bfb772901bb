"""One process of one peer: waits, blocked on its standard input, for commands; answers on the descriptor it is given.

Commands and answers are JSON, one a line: {"command": "setup"}, {"command": "run", "steps": 5}, {"command": "exit"}.
"""

import argparse
import json
import os
import sys
import time
import traceback

from . import memory, peers
from .workload import SHAPES, build_model, make_batch


class Worker:
    """Owns the model of one rank and counts its steps, so that every round goes on with the next batch."""

    def __init__(self, arguments):
        self.arguments = arguments
        self.shape = SHAPES[arguments.shape]
        self.connected = arguments.peer not in peers.UNCONNECTED
        self.step_index = 0
        self.step = None
        self.idle_bytes = 0

    def setup(self):
        import torch

        args = self.arguments
        torch.set_num_threads(1)
        peers.import_library(args.peer)
        if self.connected:
            torch.distributed.init_process_group(
                "gloo", init_method=f"file://{args.store}", rank=args.rank, world_size=args.world
            )
        self._touch_code()
        memory.release_unused()
        self.idle_bytes = memory.status_bytes("VmRSS")
        memory.reset_peak()
        context = peers.Context(args.rank, args.world, args.dtype, args.clip, self.shape.batch, args.shape, args.seed)
        model = build_model(self.shape, args.seed, args.dtype)
        params = sum(p.numel() for p in model.parameters())
        self.step = peers.PEERS[args.peer](model, context)
        return {
            "params": params,
            "idle_bytes": self.idle_bytes,
            "setup_peak_bytes": memory.status_bytes("VmHWM") - self.idle_bytes,
        }

    def _touch_code(self):
        # A tiny training step faults in the library's code pages, which would otherwise count as the peer's memory.
        import torch

        model = build_model(SHAPES["smoke"], 0, self.arguments.dtype)
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)
        model(**make_batch(SHAPES["smoke"], 0, 0, 0)).loss.backward()
        optimizer.step()

    def _batch(self):
        args = self.arguments
        if args.peer == "reference":
            return [make_batch(self.shape, args.seed, self.step_index, rank, args.dtype) for rank in range(args.world)]
        rank = args.rank if self.connected else 0
        return make_batch(self.shape, args.seed, self.step_index, rank, args.dtype)

    def run(self, steps):
        import torch

        batches = []
        for _ in range(steps):
            batches.append(self._batch())
            self.step_index += 1
        if self.connected:
            torch.distributed.barrier()
        memory.reset_peak()
        losses, seconds = [], []
        cpu_start = time.process_time()
        for batch in batches:
            start = time.perf_counter()
            loss = self.step(batch)
            seconds.append(time.perf_counter() - start)
            losses.append(loss)
        return {
            "losses": [float(loss) for loss in losses],
            "seconds": seconds,
            "cpu_seconds": (time.process_time() - cpu_start) / steps,
            "peak_bytes": memory.status_bytes("VmHWM") - self.idle_bytes,
        }

    def handle(self, command):
        if command["command"] == "setup":
            return self.setup()
        if command["command"] == "run":
            return self.run(command["steps"])
        raise ValueError(f"unknown command {command['command']!r}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--peer", required=True, choices=sorted(peers.PEERS))
    parser.add_argument("--shape", required=True, choices=sorted(SHAPES))
    parser.add_argument("--dtype", required=True, choices=["fp32", "bf16"])
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--world", type=int, required=True)
    parser.add_argument("--clip", type=float, required=True)
    parser.add_argument("--seed", type=int, required=True)
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
            if command["command"] == "exit":
                break
            try:
                answer = worker.handle(command)
            except Exception as error:
                traceback.print_exc()
                answer = {"error": f"{type(error).__name__}: {error}"}
            answers.write(json.dumps(answer) + "\n")
    # Libraries may hold threads that never end; nothing is left to save.
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
