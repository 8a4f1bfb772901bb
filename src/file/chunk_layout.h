#pragma once
#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/align.h"
#include "layout/shard_layout.h"

namespace zeroshard {

// Values are read and written in chunks of this many elements, with all values of an element's slots in one record: one
// long access.
inline constexpr int64_t kChunkNumel = int64_t{1} << 20;
// Elements whose values, of one slot, are read, checked and written as a whole: 16 KiB.
inline constexpr int64_t kSumNumel = 4 * kBlockNumel;

inline constexpr int kMaxSlots = 4;

// `numel` elements with `slots` values each: fp32, or narrower ones in the last of the slots. Chunks never cross the
// end of a group.
struct ChunkGroup {
  int64_t numel = 0;      // a multiple of kBlockNumel
  int slots = 0;          // at most kMaxSlots
  std::string name = {};  // for messages
  int narrow_slots = 0;   // those with `narrow_bytes` for each value: 1 or 2
  int narrow_bytes = 2;

  // Of a record of its elements.
  int64_t record_bytes(int64_t of_numel) const;
  int64_t bytes() const { return record_bytes(numel); }
};

// What all chunks of some groups need together. Costs nothing for each chunk.
struct ChunkTotals {
  // Throws ValueError for groups or chunks that are not whole blocks.
  explicit ChunkTotals(std::span<const ChunkGroup> groups, int64_t chunk_numel = kChunkNumel);

  int num_buffers(int wanted) const { return int(std::min(num_chunks, size_t(wanted))); }
  // Of the buffers and the checksums that a store keeps in memory.
  int64_t memory_bytes(int buffer_count) const {
    return num_buffers(buffer_count) * record_bytes + int64_t(num_sums * sizeof(uint64_t));
  }

  size_t num_chunks = 0, num_sums = 0;
  int64_t record_bytes = 0;  // of the longest record
};

// Slots of narrow values end at whole multiples of this, as those of fp32 values do: direct I/O needs it.
inline constexpr int64_t kSlotAlignment = kBlockNumel * int64_t{sizeof(float)};

struct Chunk {
  Range elements;  // of its group
  size_t group = 0;
  int slots = 0, narrow_slots = 0, narrow_bytes = 2;
  size_t file = 0;
  int64_t offset = 0;    // of its record in the file: slot after slot
  size_t first_sum = 0;  // its checksums: slot after slot, one for each block of kSumNumel elements

  int64_t numel() const { return elements.size(); }
  int64_t bytes() const { return slot_begin(slots); }
  int64_t value_bytes(int slot) const { return slot < slots - narrow_slots ? 4 : narrow_bytes; }
  // In its record; of `slots`, the end.
  int64_t slot_begin(int slot) const {
    const int wide = std::min(slot, slots - narrow_slots);
    return numel() * 4 * wide + align_up(numel() * narrow_bytes, kSlotAlignment) * (slot - wide);
  }
  size_t blocks() const { return size_t(ceil_div(numel(), kSumNumel)); }
  // Its values of one slot that have a checksum together, from the chunk's first element on.
  Range block(size_t number) const {
    return {int64_t(number) * kSumNumel, std::min(int64_t(number + 1) * kSumNumel, numel())};
  }
  // Where it lies in the record: the last one with what fills up the slot.
  Range block_bytes(int slot, size_t number) const {
    const int64_t begin = slot_begin(slot) + block(number).begin * value_bytes(slot);
    const bool is_last = number + 1 == blocks();
    return {begin, is_last ? slot_begin(slot + 1) : begin + kSumNumel * value_bytes(slot)};
  }
};

// Where the chunks of some groups lie in files: chunk after chunk, striped over the files. What is planned and what the
// store does come from here.
class ChunkLayout {
 public:
  // Throws ValueError for groups that are not whole blocks, or no file.
  ChunkLayout(std::span<const ChunkGroup> groups, size_t num_files, int64_t chunk_numel = kChunkNumel);

  const std::vector<Chunk>& chunks() const { return chunks_; }
  // The number of the chunk that has `element` of the group.
  size_t find(size_t group, int64_t element) const { return first_.at(group) + size_t(element / chunk_numel_); }
  int64_t numel(size_t group) const { return numels_.at(group); }
  // The name of the group whose values lie at `offset` of the file.
  const std::string& group_at(size_t file, int64_t offset) const;
  int64_t file_bytes(size_t file) const { return file_bytes_.at(file); }
  int64_t total_bytes() const;
  const ChunkTotals& totals() const { return totals_; }

 private:
  int64_t chunk_numel_;
  ChunkTotals totals_;
  std::vector<Chunk> chunks_;
  std::vector<size_t> first_;       // by group
  std::vector<int64_t> numels_;     // by group
  std::vector<std::string> names_;  // by group
  std::vector<int64_t> file_bytes_;
};

}  // namespace zeroshard
