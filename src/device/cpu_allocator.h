#pragma once

namespace zeroshard {

// Replaces torch's allocator of CPU tensors, so that freed tensors leave room for later ones.
//
// Tensors below 1 MiB use malloc, aligned by hand, instead of posix_memalign. In posix_memalign, glibc (2.36 and
// others) adds the alignment to the size, so the gap of a freed tensor is too small for the next of its size, and a
// training process grows to a multiple of its tensors (BZ #14581). Tensors from 1 MiB on use mappings that are kept for
// later tensors (BlockCache): in a heap they would lie between small blocks that stay.
//
// Applies to later tensors of the whole process. c10 keeps the allocator without a lock: a thread that makes a tensor
// at this moment uses either allocator, and returns the memory to the same one. Does nothing if torch's own allocator
// was already replaced, if THP_MEM_ALLOC_ENABLE requests huge pages from it, or if malloc is not glibc's (LD_PRELOAD of
// jemalloc, a sanitizer). May be called repeatedly.
void use_compact_cpu_allocator();

// A training step has ended: mappings that only steps before the last one needed are no longer kept.
void end_cpu_memory_step() noexcept;

// Bytes of freed mappings that are kept.
int64_t kept_cpu_memory() noexcept;

// Returns all kept mappings: later tensors will have other sizes.
void trim_cpu_memory() noexcept;

}  // namespace zeroshard
