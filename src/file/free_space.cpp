#include "file/free_space.h"

#include <iterator>

#include "base/check.h"

namespace zeroshard {

std::optional<int64_t> FreeSpace::take(int64_t bytes) {
  for (auto found = stretches_.begin(); found != stretches_.end(); ++found) {
    const auto [offset, free] = *found;
    if (free < bytes) continue;
    stretches_.erase(found);
    if (free > bytes) stretches_.emplace(offset + bytes, free - bytes);
    return offset;
  }
  return std::nullopt;
}

void FreeSpace::give_back(int64_t offset, int64_t bytes) {
  if (bytes == 0) return;
  auto next = stretches_.lower_bound(offset);
  ZS_ASSERT(next == stretches_.end() || offset + bytes <= next->first, "space of a file is given back twice");
  if (next != stretches_.end() && next->first == offset + bytes) {
    bytes += next->second;
    next = stretches_.erase(next);
  }
  if (next != stretches_.begin()) {
    const auto before = std::prev(next);
    ZS_ASSERT(before->first + before->second <= offset, "space of a file is given back twice");
    if (before->first + before->second == offset) {
      before->second += bytes;
      return;
    }
  }
  stretches_.emplace(offset, bytes);
}

void FreeSpace::extend(int64_t end) {
  const int64_t before = end_;
  end_ = end;
  give_back(before, end - before);
}

int64_t FreeSpace::begin_of_tail() const {
  if (stretches_.empty()) return end_;
  const auto [offset, bytes] = *stretches_.rbegin();
  return offset + bytes == end_ ? offset : end_;
}

int64_t FreeSpace::free_bytes() const {
  int64_t sum = 0;
  for (const auto& [offset, bytes] : stretches_) sum += bytes;
  return sum;
}

}  // namespace zeroshard
