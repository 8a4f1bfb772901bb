#pragma once

namespace zeroshard {

// Lets torch take the memory of CPU tensors so that freed tensors leave room for the next.
//
// Below 1 MiB by malloc, aligned by hand, and no longer by posix_memalign: there glibc (2.36 and others) asks for the
// alignment on top of the size, so that what a tensor leaves is too small for the next of its size, and a training
// process grows to a multiple of what it holds (BZ #14581). From 1 MiB on in mappings that are kept for the next
// tensor (BlockCache): in a heap they would lie between small blocks that stay.
//
// For tensors from now on, in the whole process; c10 keeps the allocator without a lock, so that a thread that makes a
// tensor at just this moment takes its memory from the one or the other, and gives it back to the same. Does nothing
// where torch's own allocator is not in use any more, where THP_MEM_ALLOC_ENABLE asks it for huge pages, and where
// malloc is not glibc's (LD_PRELOAD of jemalloc, a sanitizer). May be called often.
void use_compact_cpu_allocator();

// A training step has ended: mappings that only the steps before the last needed are kept no longer.
void end_cpu_memory_step() noexcept;

// Bytes of freed mappings that are kept.
int64_t kept_cpu_memory() noexcept;

// No freed mapping is kept: what comes next has other sizes.
void trim_cpu_memory() noexcept;

}  // namespace zeroshard
