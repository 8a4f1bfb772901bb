#pragma once

namespace zeroshard {

// Lets torch take the memory of CPU tensors by malloc, aligned by hand, and no longer by posix_memalign: there glibc
// (2.36 and others) asks for the alignment on top of the size, so that what a tensor leaves is too small for the next
// of its size, and a training process grows to a multiple of what it holds (BZ #14581).
//
// For tensors from now on, in the whole process. Does nothing where torch's own allocator is not in use any more, where
// THP_MEM_ALLOC_ENABLE asks it for huge pages, or without glibc. May be called often, from any thread.
void use_compact_cpu_allocator();

}  // namespace zeroshard
