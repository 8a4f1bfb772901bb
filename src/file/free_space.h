#pragma once
#include <cstdint>
#include <map>
#include <optional>

namespace zeroshard {

// Tracks the free ranges of a file. Neighbouring free ranges are joined, so that repeatedly taking and returning space
// needs no more space than was in use at one time.
class FreeSpace {
 public:
  // Takes `bytes` from the first free range that is long enough, and returns their start. Returns nothing if no range
  // is long enough.
  std::optional<int64_t> take(int64_t bytes);
  // Returns a range that was taken, as a whole.
  void give_back(int64_t offset, int64_t bytes);
  // Sets a new end of the file. The added range is free.
  void extend(int64_t end);

  int64_t end() const { return end_; }
  // Returns the start of the free range at the end of the file; the end if there is none.
  int64_t begin_of_tail() const;
  int64_t free_bytes() const;

 private:
  std::map<int64_t, int64_t> stretches_;  // maps the start of each free range to its bytes; no two ranges touch
  int64_t end_ = 0;
};

}  // namespace zeroshard
