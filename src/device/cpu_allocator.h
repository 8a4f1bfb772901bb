#pragma once

namespace zeroshard {

// Replaces torch's allocator of CPU tensors by one that reuses the memory of freed tensors better.
//
// Tensors below 1 MiB use malloc, aligned by hand, instead of posix_memalign, because posix_memalign of glibc (2.36 and
// others) adds the alignment to the size. The gap that a freed tensor leaves would be too small for the next tensor of
// its size, and a training process would grow to several times the size of its tensors (BZ #14581). Tensors from 1 MiB
// on use mappings that are kept for later tensors (BlockCache), because in a heap they would lie between small blocks
// that stay.
//
// The allocator is used for all later tensors of the process. c10 has no lock around the choice of the allocator. A
// thread that makes a tensor during this call uses either the old or the new allocator, and later frees the memory with
// the same one. Does nothing if torch's own allocator was already replaced, if THP_MEM_ALLOC_ENABLE requests huge pages
// from it, or if malloc is not glibc's (LD_PRELOAD of jemalloc, a sanitizer). May be called repeatedly.
void use_compact_cpu_allocator();

// The engine calls it after a training step. It frees mappings that were not needed since the step before.
void end_cpu_memory_step() noexcept;

// Returns the bytes of freed mappings that are kept.
int64_t kept_cpu_memory() noexcept;

// Frees all kept mappings, because later tensors will have other sizes.
void trim_cpu_memory() noexcept;

}  // namespace zeroshard
