#include "layout/shard_layout.h"

#include <algorithm>
#include <limits>

#include "base/align.h"
#include "base/check.h"

namespace zeroshard {

Range intersect(Range a, Range b) {
  const Range both{std::max(a.begin, b.begin), std::min(a.end, b.end)};
  return both.size() > 0 ? both : Range{};
}

ShardLayout::ShardLayout(std::span<const int64_t> numels, int world_size, int64_t alignment, int parts)
    : world_size_(world_size), parts_(parts) {
  ZS_CHECK(world_size > 0, "world_size must be positive, got ", world_size);
  ZS_CHECK(parts > 0, "parts must be positive, got ", parts);
  ZS_ASSERT(alignment > 0 && kBlockNumel % alignment == 0, "parameters cannot begin at multiples of ", alignment);
  const int64_t limit = std::numeric_limits<int64_t>::max() / 2 - kBlockNumel * world_size * parts;
  int64_t end = 0;
  params_.reserve(numels.size());
  for (const int64_t numel : numels) {
    ZS_CHECK(numel >= 0, "numel must not be negative, got ", numel);
    const int64_t begin = align_up(end, alignment);
    ZS_CHECK(numel <= limit - begin, "a unit of more than ", limit, " elements cannot be laid out");
    params_.push_back({begin, begin + numel});
    end = begin + numel;
  }
  part_numel_ = align_up(ceil_div(end, int64_t{world_size} * parts), kBlockNumel);
}

}  // namespace zeroshard
