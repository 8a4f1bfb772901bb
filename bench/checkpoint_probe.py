"""What the machine can do at most: memcpy of a rank's bytes, and writing and reading them past the page cache."""

import ctypes
import mmap
import os
import time

CHUNK = 16 << 20


def _warm(size):
    """Memory on page boundaries, in huge pages where the system has them, every page present."""
    area = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    area.madvise(mmap.MADV_HUGEPAGE)
    ctypes.memset(_address(area), 1, size)
    return area


def _address(area):
    return ctypes.addressof(ctypes.c_char.from_buffer(area))


class Probe:
    """Of one rank: `size` bytes, a multiple of 4096 (what O_DIRECT asks for)."""

    def __init__(self, size):
        self.size = size
        self.source, self.target = _warm(size), _warm(size)

    def memcpy(self):
        start = time.perf_counter()
        ctypes.memmove(_address(self.target), _address(self.source), self.size)
        return time.perf_counter() - start

    def write(self, path):
        """Creates, reserves, writes and makes durable. From as much memory as a state has: a cache holds none of it."""
        start = time.perf_counter()
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_DIRECT, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, self.size)
            for offset in range(0, self.size, CHUNK):
                view = memoryview(self.source)[offset : min(offset + CHUNK, self.size)]
                if os.pwrite(descriptor, view, offset) != len(view):
                    raise OSError(f"{path}: short write at {offset}")
            os.fdatasync(descriptor)
        finally:
            os.close(descriptor)
        return time.perf_counter() - start

    def read(self, path):
        start = time.perf_counter()
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECT)
        try:
            for offset in range(0, self.size, CHUNK):
                view = memoryview(self.target)[offset : min(offset + CHUNK, self.size)]
                if os.preadv(descriptor, [view], offset) != len(view):
                    raise OSError(f"{path}: short read at {offset}")
        finally:
            os.close(descriptor)
        return time.perf_counter() - start


def drop_cache(directory):
    """Makes the files below `directory` durable and drops them from the page cache. Returns the bytes of all files."""
    total = 0
    for folder, _, names in os.walk(directory):
        for name in names:
            descriptor = os.open(os.path.join(folder, name), os.O_RDONLY)
            try:
                os.fsync(descriptor)
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
                total += os.fstat(descriptor).st_size
            finally:
                os.close(descriptor)
    return total
