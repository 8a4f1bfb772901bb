#pragma once
#include <cstdint>
#include <map>
#include <optional>

namespace zeroshard {

// Tracks which ranges of a file are free. Does not touch the file. Neighbouring free ranges are joined, so that a long
// piece can be taken where several short ones were.
class FreeSpace {
 public:
  // Takes `bytes` from the first free range that is long enough, and returns the start of the taken space. Returns
  // nothing if no range is long enough.
  std::optional<int64_t> take(int64_t bytes);
  // Makes taken space free again. `offset` must be the result of a take() of `bytes`.
  void give_back(int64_t offset, int64_t bytes);
  // Notes that the file now ends at `end`, which must not be before the previous end. The added range is free.
  void extend(int64_t end);

  int64_t end() const { return end_; }
  // Returns the start of the free range that ends at the end of the file. If there is none, returns the end of the
  // file.
  int64_t begin_of_tail() const;
  int64_t free_bytes() const;

 private:
  std::map<int64_t, int64_t> stretches_;  // maps the start of each free range to its length; no two ranges touch
  int64_t end_ = 0;
};

}  // namespace zeroshard
