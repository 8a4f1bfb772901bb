#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>

namespace zeroshard {

// Memory straight from the system, of which freed blocks are kept for the next of their size.
//
// For large tensors that come and go in every training step. In a heap, small blocks that stay lie between them, and
// what they leave fits nobody. Here, what is in use and what is kept are together never more than the most that was
// in use at one time in this step and the last. A process that ends no step for kStepSeconds has ended one: what it
// keeps goes back when it next takes or frees a block. Thread-safe.
class BlockCache {
 public:
  struct Block {
    void* start = nullptr;  // of a page; null: the system has no memory
    size_t bytes = 0;       // whole pages, at most 1/8 more than asked for
  };

  static constexpr int64_t kStepSeconds = 60;
  using Clock = int64_t (*)();  // seconds

  BlockCache() = default;
  explicit BlockCache(Clock clock) : now_(clock) {}
  ~BlockCache();
  BlockCache(const BlockCache&) = delete;
  BlockCache& operator=(const BlockCache&) = delete;

  // At least `bytes`, of any contents. When the system refuses, what is kept goes back to it first.
  Block take(size_t bytes) noexcept;
  void give_back(Block block) noexcept;

  // A step has ended: what only the one before needed is kept no longer.
  void end_step() noexcept;
  // Keeps nothing of what has been freed so far.
  void trim() noexcept;

  size_t kept_bytes() const;

  // Around fork(), so that a child gets the cache in a whole state.
  void lock() { mutex_.lock(); }
  void unlock() { mutex_.unlock(); }

 private:
  struct Kept {
    void* start;
    uint64_t freed_at;
  };

  void end_step_of_the_past() noexcept;
  void end_step_locked() noexcept;
  Block take_kept(size_t needed) noexcept;
  void shrink_to(size_t bytes) noexcept;
  void release_oldest() noexcept;

  mutable std::mutex mutex_;
  std::multimap<size_t, Kept> kept_;  // by bytes
  size_t kept_bytes_ = 0;
  size_t used_bytes_ = 0;
  size_t peak_ = 0;       // of used_bytes_, in this step
  size_t last_peak_ = 0;  // and in the one before
  uint64_t clock_ = 0;
  Clock now_ = nullptr;  // null: the system's
  int64_t step_ended_ = 0;
};

}  // namespace zeroshard
