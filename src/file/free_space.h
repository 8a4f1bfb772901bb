#pragma once
#include <cstdint>
#include <map>
#include <optional>

namespace zeroshard {

// Tracks the free ranges of a file. Neighbouring free ranges are joined, so that the file need not be larger than the
// space that was in use at one time.
class FreeSpace {
 public:
  // Takes `bytes` from the first free range that is long enough, and returns the start of the taken space. Returns
  // nothing if no range is long enough.
  std::optional<int64_t> take(int64_t bytes);
  // Returns space to the free ranges. `offset` must be the result of a take() of `bytes`.
  void give_back(int64_t offset, int64_t bytes);
  // Moves the end of the file to `end`. The added range is free.
  void extend(int64_t end);

  int64_t end() const { return end_; }
  // Returns the start of the free range at the end of the file. Returns the end if that range does not exist.
  int64_t begin_of_tail() const;
  int64_t free_bytes() const;

 private:
  std::map<int64_t, int64_t> stretches_;  // maps the start of each free range to its bytes; no two ranges touch
  int64_t end_ = 0;
};

}  // namespace zeroshard
