"""Resident memory of this process, from /proc, and the memory bandwidth of the machine."""

import ctypes
import gc
import time


def status_bytes(field):
    """Returns a field of /proc/self/status such as VmRSS or VmHWM, in bytes."""
    with open("/proc/self/status") as status:
        for line in status:
            if line.startswith(field + ":"):
                return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/self/status has no field {field}")


def reset_peak():
    """Sets VmHWM to the present resident size."""
    with open("/proc/self/clear_refs", "w") as clear:
        clear.write("5")


def release_unused():
    """Gives freed heap pages back to the system, so that an idle reading holds no leftovers."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)


def memcpy_gb_per_second(size=256 << 20, repeats=5):
    """Returns the best copied GB/s (10^9 bytes) of one thread over a buffer far larger than the caches."""
    source = ctypes.create_string_buffer(size)
    target = ctypes.create_string_buffer(size)
    ctypes.memset(source, 1, size)
    ctypes.memmove(target, source, size)
    best = float("inf")
    for _ in range(repeats):
        start = time.perf_counter()
        ctypes.memmove(target, source, size)
        best = min(best, time.perf_counter() - start)
    return size / best / 1e9
