#include "file/chunk_layout.h"

#include <numeric>

#include "base/check.h"

namespace zeroshard {

int64_t ChunkGroup::record_bytes(int64_t of_numel) const {
  return Chunk{{0, of_numel}, 0, slots, narrow_slots, narrow_bytes}.bytes();
}

ChunkTotals::ChunkTotals(std::span<const ChunkGroup> groups, int64_t chunk_numel) {
  ZS_CHECK(chunk_numel > 0 && chunk_numel % kBlockNumel == 0, "a chunk must have a multiple of ", kBlockNumel,
           " elements, got ", chunk_numel);
  for (const ChunkGroup& group : groups) {
    ZS_CHECK(group.numel >= 0 && group.numel % kBlockNumel == 0 && group.slots >= 0, "a group of ", group.numel,
             " elements with ", group.slots, " values each is not made of blocks of ", kBlockNumel);
    ZS_CHECK(group.slots <= kMaxSlots, "elements have at most ", kMaxSlots, " values each, got ", group.slots);
    ZS_CHECK(group.narrow_slots >= 0 && group.narrow_slots <= group.slots, group.narrow_slots, " of ", group.slots,
             " values of an element cannot be narrow");
    ZS_CHECK(group.narrow_bytes == 1 || group.narrow_bytes == 2, "narrow values have 1 or 2 bytes, got ",
             group.narrow_bytes);
    if (group.slots == 0) continue;
    const int64_t whole = group.numel / chunk_numel, rest = group.numel % chunk_numel;
    const int64_t blocks = whole * ceil_div(chunk_numel, kSumNumel) + ceil_div(rest, kSumNumel);
    num_chunks += size_t(whole + (rest > 0 ? 1 : 0));
    num_sums += size_t(blocks * group.slots);
    record_bytes = std::max(record_bytes, group.record_bytes(std::min(group.numel, chunk_numel)));
  }
}

ChunkLayout::ChunkLayout(std::span<const ChunkGroup> groups, size_t num_files, int64_t chunk_numel)
    : chunk_numel_(chunk_numel), totals_(groups, chunk_numel), file_bytes_(num_files, 0) {
  ZS_CHECK(num_files > 0, "there is no file for chunks");
  chunks_.reserve(totals_.num_chunks);
  size_t num_sums = 0;
  for (const ChunkGroup& group : groups) {
    first_.push_back(chunks_.size());
    numels_.push_back(group.slots > 0 ? group.numel : 0);
    names_.push_back(group.name);
    for (int64_t begin = 0; begin < numels_.back(); begin += chunk_numel) {
      Chunk chunk{{begin, std::min(begin + chunk_numel, group.numel)},
                  first_.size() - 1,
                  group.slots,
                  group.narrow_slots,
                  group.narrow_bytes,
                  chunks_.size() % num_files};
      chunk.offset = file_bytes_[chunk.file];
      chunk.first_sum = num_sums;
      file_bytes_[chunk.file] += chunk.bytes();
      num_sums += chunk.blocks() * size_t(chunk.slots);
      chunks_.push_back(chunk);
    }
  }
}

const std::string& ChunkLayout::group_at(size_t file, int64_t offset) const {
  const auto found = std::find_if(chunks_.begin(), chunks_.end(), [&](const Chunk& chunk) {
    return chunk.file == file && offset >= chunk.offset && offset < chunk.offset + chunk.bytes();
  });
  ZS_ASSERT(found != chunks_.end(), "no chunk has byte ", offset, " of file ", file);
  return names_[found->group];
}

int64_t ChunkLayout::total_bytes() const {
  return std::accumulate(file_bytes_.begin(), file_bytes_.end(), int64_t{0});
}

}  // namespace zeroshard
