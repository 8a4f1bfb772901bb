#pragma once
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>

#include "comm/segment.h"

namespace zeroshard {

// A ring in shared memory for copies of inputs that lie outside of any segment. The ring reserves address space, but
// takes little memory, because put() returns its pages to the system if the ring is empty, except for the first 64 MiB.
class StagingRing {
 public:
  explicit StagingRing(Mapping memory) : memory_(std::move(memory)) {}

  // Releases the oldest copies whose collectives are finished. Then copies the input of collective `seq`. Returns the
  // copy's offset, or nothing if there is no room. There can be room later, after the release of other copies, unless
  // the input is larger than the ring. `is_finished(seq)` must return whether all ranks have finished collective `seq`.
  std::optional<uint64_t> put(const void* data, int64_t bytes, uint64_t seq,
                              const std::function<bool(uint64_t)>& is_finished);
  // Returns the collective whose copy will be released next; 0 if there is none.
  uint64_t oldest() const { return copies_.empty() ? 0 : copies_.front().seq; }

 private:
  struct Copy {
    uint64_t seq = 0, begin = 0, end = 0;
  };
  std::optional<uint64_t> place(uint64_t bytes) const;
  void trim() noexcept;

  Mapping memory_;
  std::deque<Copy> copies_;  // oldest first
  uint64_t high_water_ = 0;  // end of the bytes that are in memory; at most kReserve after trim()
};

}  // namespace zeroshard
