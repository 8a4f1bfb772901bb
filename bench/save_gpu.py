#!/usr/bin/env python3
"""How long training stands still for a checkpoint that is written in the background.

    bench/save_gpu.py
    bench/save_gpu.py --device cpu --small # only shows that it runs

From an idle device until the call returns. Beside it: the time of the same bytes from the device to pinned memory of
the host, measured by one large copy in the same run. The first save also allocates the host's memory, and is listed
apart.
"""

import shutil
import sys
import tempfile

from gpubench import results
from gpubench.llama import SHAPES, Llama, build, tokens
from gpubench.measuring import parse_arguments, seconds_of, synchronize, to_host_bandwidth
from gpubench.peers import Zeroshard

GOAL = 1.2
STATE_BYTES = 3 * 4  # master weights and two moments of an element


def main():
    arguments = parse_arguments(__doc__, shape="125m", saves=4, folder="")
    name = "small" if arguments.small else arguments.shape
    device, shape = arguments.place, SHAPES[name]
    peer = Zeroshard(build(lambda: Llama(shape), device))
    moved = STATE_BYTES * sum(param.numel() for param in peer.engine.module.parameters())
    stalls, written = [], []
    folder = tempfile.mkdtemp(prefix="zeroshard-save-", dir=arguments.folder or None)
    try:
        for number in range(arguments.saves):
            peer.backward(tokens(shape, device, number))
            peer.update()
            synchronize(device)
            tag = f"save{number}"
            stalls.append(seconds_of(device, lambda tag=tag: peer.engine.save_checkpoint(folder, tag=tag)))
            written.append(stalls[-1] + seconds_of(device, peer.engine.wait_for_checkpoint))
            shutil.rmtree(f"{folder}/{tag}")
    finally:
        shutil.rmtree(folder)
    bandwidth = to_host_bandwidth(device, arguments.small)
    best, least = min(stalls[1:]), moved / bandwidth
    figures = {
        "bytes": moved,
        "first_stall_ms": stalls[0] * 1e3,
        "stalls_ms": [stall * 1e3 for stall in stalls[1:]],
        "written_s": written,
        "to_host_gb_s": bandwidth / 1e9,
        "ratio": best / least,
    }
    rows = [
        ["bytes of the state", f"{moved / 1e6:.1f} MB"],
        ["from the device to pinned memory", f"{bandwidth / 1e9:.1f} GB/s, so {least * 1e3:.1f} ms"],
        ["stall, first", f"{stalls[0] * 1e3:.1f} ms"],
        ["stall, best of the others", f"{best * 1e3:.1f} ms"],
        ["stall over those bytes' time", results.verdict(arguments, best / least, GOAL)],
        ["until all is on the disk, best", f"{min(written):.2f} s"],
    ]
    results.write(arguments, f"save {name}", figures, results.table(["what", "measured"], rows))
    peer.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
