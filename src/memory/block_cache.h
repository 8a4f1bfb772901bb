#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>

namespace zeroshard {

// Allocates memory directly from the system, and keeps freed blocks for later blocks of about their size.
//
// The cache is for large tensors that are allocated and freed in every training step. In a heap, small blocks that stay
// would lie between these tensors. A freed tensor would leave a gap between small blocks that often fits no other
// tensor. Used and kept memory together never exceed the largest amount that was in use at one time in this step or the
// one before. If a process ends no step for kStepSeconds, the next take() or give_back() ends the step, so that a
// process which trains no more also frees kept blocks. Thread-safe.
class BlockCache {
 public:
  struct Block {
    void* start = nullptr;  // where the block begins, which is the start of a page; null: the system has no memory
    size_t bytes = 0;       // a whole number of pages, at most 1/8 more than the request rounded up to pages
  };

  static constexpr int64_t kStepSeconds = 60;
  using Clock = int64_t (*)();  // returns seconds

  BlockCache() = default;
  explicit BlockCache(Clock clock) : now_(clock) {}
  ~BlockCache();
  BlockCache(const BlockCache&) = delete;
  BlockCache& operator=(const BlockCache&) = delete;

  // Returns at least `bytes` of uninitialised memory. If the system refuses, returns all kept blocks to the system and
  // asks again. Returns a null block if the system still refuses.
  Block take(size_t bytes) noexcept;
  // Keeps the block. If there is no memory for an entry in the list of kept blocks, returns the block to the system.
  void give_back(Block block) noexcept;

  // Ends a training step. Frees kept blocks, oldest first, until used and kept memory together are at most the largest
  // amount in use at one time in this step.
  void end_step() noexcept;
  // Returns all kept blocks to the system.
  void trim() noexcept;

  size_t kept_bytes() const;

  // A fork handler must call lock() before fork() and unlock() after it, so that a child gets the cache in a consistent
  // state.
  void lock() { mutex_.lock(); }
  void unlock() { mutex_.unlock(); }

 private:
  struct Kept {
    void* start;
    uint64_t freed_at;
  };

  void end_overdue_step() noexcept;
  void end_step_locked() noexcept;
  Block take_kept(size_t needed) noexcept;
  void shrink_to(size_t bytes) noexcept;
  void release_oldest() noexcept;

  mutable std::mutex mutex_;
  std::multimap<size_t, Kept> kept_;  // by size in bytes
  size_t kept_bytes_ = 0;
  size_t used_bytes_ = 0;
  size_t peak_ = 0;         // highest value of used_bytes_ in this step
  size_t last_peak_ = 0;    // highest value of used_bytes_ in the step before
  uint64_t clock_ = 0;      // number of blocks that were given back
  Clock now_ = nullptr;     // null: the system's clock
  int64_t step_ended_ = 0;  // when the last step ended, in seconds
};

}  // namespace zeroshard
