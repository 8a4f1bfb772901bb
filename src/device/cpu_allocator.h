#pragma once

namespace zeroshard {

// Replaces torch's allocator of CPU tensors by one that reuses the memory of freed tensors better.
//
// Tensors below 1 MiB are allocated by malloc() and aligned by hand, because posix_memalign() of glibc (2.36 and
// others) needs a gap of the size plus the alignment. The gap that a freed tensor leaves would be too small for the
// next tensor of the same size, and a training process would grow to several times the size of its tensors (BZ #14581).
// Larger tensors use mappings that are kept for later tensors (BlockCache). In the heap of malloc(), large tensors
// would lie between small blocks that are not freed, and would leave gaps there.
//
// All later tensors of the process use the allocator. c10 has no lock around the choice of the allocator. A thread that
// makes a tensor during this call uses either the old or the new allocator, and later frees the memory with the same
// one. The function does nothing if torch's own allocator was already replaced, if THP_MEM_ALLOC_ENABLE requests huge
// pages from it, or if malloc() is not known to be that of glibc (LD_PRELOAD of jemalloc, a sanitizer). It may be
// called repeatedly.
void use_compact_cpu_allocator();

// Tells the allocator that a step has ended, so that it frees kept mappings that the step did not need
// (BlockCache::end_step()). The engine calls it after a training step, and before the forward of an evaluation.
void end_cpu_memory_step() noexcept;

// Returns the bytes of the mappings that are kept for later tensors.
int64_t kept_cpu_memory() noexcept;

// Frees all kept mappings. Useful when later tensors will have other sizes.
void trim_cpu_memory() noexcept;

}  // namespace zeroshard
