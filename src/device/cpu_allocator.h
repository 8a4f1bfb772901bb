#pragma once

namespace zeroshard {

// Lets torch take the memory of CPU tensors by malloc, aligned by hand, and no longer by posix_memalign: there glibc
// (2.36 and others) asks for the alignment on top of the size, so that what a tensor leaves is too small for the next
// of its size, and a training process grows to a multiple of what it holds (BZ #14581).
//
// For tensors from now on, in the whole process; c10 keeps the allocator without a lock, so that a thread that makes a
// tensor at just this moment takes its memory from the one or the other, and gives it back to the same. Does nothing
// where torch's own allocator is not in use any more, where THP_MEM_ALLOC_ENABLE asks it for huge pages, and where
// malloc is not glibc's (LD_PRELOAD of jemalloc, a sanitizer). May be called often.
void use_compact_cpu_allocator();

}  // namespace zeroshard
