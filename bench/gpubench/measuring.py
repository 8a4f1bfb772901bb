"""Arguments that all GPU benchmarks share, and clocks that know when a device has finished."""

import argparse
import os
import statistics
import time

import torch


def parse_arguments(doc, **more):
    """`more`: further options by name, each with its default. Does not touch the device."""
    parser = argparse.ArgumentParser(description=doc.splitlines()[0])
    parser.add_argument(
        "--device", choices=["cuda", "cpu"], default="cuda", help="cpu: only shows that the script runs"
    )
    parser.add_argument("--small", action="store_true", help="seconds in all: sizes whose figures mean nothing")
    parser.add_argument(
        "--out", default=os.environ.get("OUT", "build/gpu/out"), help="the folder of bench.json, bench.md"
    )
    for name, default in more.items():
        parser.add_argument(f"--{name}", type=type(default), default=default)
    arguments = parser.parse_args()
    arguments.place = torch.device("cuda", 0) if arguments.device == "cuda" else torch.device("cpu")
    return arguments


def synchronize(device):
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def seconds_of(device, action):
    """From an idle device to an idle device."""
    synchronize(device)
    start = time.perf_counter()
    action()
    synchronize(device)
    return time.perf_counter() - start


def host_seconds_of(device, action):
    """Until the host has given all its work to an idle device, and until the device has done it."""
    synchronize(device)
    start = time.perf_counter()
    action()
    given = time.perf_counter() - start
    synchronize(device)
    return given, time.perf_counter() - start


def best_rate(device, action, count, tries=5):
    """`count` per second, in the best of some tries."""
    action()
    return count / min(seconds_of(device, action) for _ in range(tries))


def copy_bandwidth(device, small):
    """Bytes read and written per second by one large copy on the device."""
    numel = (1 << 22) if small else (1 << 29)
    source = torch.ones(numel, device=device)
    target = torch.empty_like(source)
    return best_rate(device, lambda: target.copy_(source), 2 * 4 * numel)


def to_host_bandwidth(device, small):
    """Bytes per second from the device to pinned memory of the host."""
    numel = (1 << 20) if small else (1 << 28)
    source = torch.ones(numel, device=device)
    target = torch.empty(numel, pin_memory=device.type == "cuda")
    return best_rate(device, lambda: target.copy_(source, non_blocking=True), 4 * numel)


def to_device_bandwidth(device, small):
    """Bytes per second from pinned memory of the host to the device."""
    numel = (1 << 20) if small else (1 << 28)
    source = torch.ones(numel, pin_memory=device.type == "cuda")
    target = torch.empty(numel, device=device)
    return best_rate(device, lambda: target.copy_(source, non_blocking=True), 4 * numel)


def quartiles(values):
    """First quartile, median, third quartile."""
    if len(values) == 1:
        return values[0], values[0], values[0]
    return tuple(statistics.quantiles(values, n=4, method="inclusive"))
