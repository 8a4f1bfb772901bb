#pragma once
#include <cstdint>
#include <map>
#include <optional>

namespace zeroshard {

// Which stretches of a file are free: those that are given back are joined, so that what is taken and given back again
// and again needs no more space than it needed at once.
class FreeSpace {
 public:
  // The start of `bytes` that are free, as near to the start of the file as there are some; from now on they are not.
  // Nothing where no free stretch is that long.
  std::optional<int64_t> take(int64_t bytes);
  // What was taken, as a whole.
  void give_back(int64_t offset, int64_t bytes);
  // The file now ends there.
  void extend(int64_t end);

  int64_t end() const { return end_; }
  // Where the free stretch at the end of the file begins; the end where there is none.
  int64_t begin_of_tail() const;
  int64_t free_bytes() const;

 private:
  std::map<int64_t, int64_t> stretches_;  // bytes, by where they begin; no two touch
  int64_t end_ = 0;
};

}  // namespace zeroshard
