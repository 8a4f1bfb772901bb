#pragma once
#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/align.h"
#include "layout/shard_layout.h"

namespace zeroshard {

// The usual number of elements of a chunk. A chunk is a range of elements of one group, and the last chunk of a group
// can have fewer elements. Each element has one value in each slot. A slot is one kind of value, such as the master
// weight or a moment. A swap file keeps the values of all slots of a chunk together as one record, so that they can be
// read or written in one long access.
inline constexpr int64_t kChunkNumel = int64_t{1} << 20;
// The number of elements of a block of a chunk. The last block of a chunk can have fewer. A block of a chunk is as long
// as four of the blocks that kBlockNumel measures. The values of a block in one slot (16 KiB if they are fp32) share
// one checksum, and are read, checked and written as a whole.
inline constexpr int64_t kSumNumel = 4 * kBlockNumel;

inline constexpr int kMaxSlots = 4;

// A group of `numel` elements with `slots` values each. Values are fp32, but the values of the last `narrow_slots`
// slots are narrower. A chunk has elements of one group only. A group without slots has no chunks.
struct ChunkGroup {
  int64_t numel = 0;      // a multiple of kBlockNumel
  int slots = 0;          // at most kMaxSlots
  std::string name = {};  // for messages
  int narrow_slots = 0;   // at most `slots`
  int narrow_bytes = 2;   // bytes of a value in these slots: 1 or 2

  // Returns how many bytes a record of `of_numel` elements of this group has.
  int64_t record_bytes(int64_t of_numel) const;
  int64_t bytes() const { return record_bytes(numel); }
};

// Sizes over all chunks of some groups, computed without a loop over the chunks.
struct ChunkTotals {
  // Throws ValueError for a group that breaks a limit named at ChunkGroup, and if `chunk_numel` is not a positive
  // multiple of kBlockNumel.
  explicit ChunkTotals(std::span<const ChunkGroup> groups, int64_t chunk_numel = kChunkNumel);

  int num_buffers(int wanted) const { return int(std::min(num_chunks, size_t(wanted))); }
  // Returns how many bytes the buffers and checksums of a store with at most `buffer_count` buffers take in memory.
  int64_t memory_bytes(int buffer_count) const {
    return num_buffers(buffer_count) * record_bytes + int64_t(num_sums * sizeof(uint64_t));
  }

  size_t num_chunks = 0, num_sums = 0;
  int64_t record_bytes = 0;  // size of the longest record
};

// A slot with narrow values is padded to a multiple of this size (4096 bytes), so that the next slot begins at an
// offset that O_DIRECT allows. A slot of fp32 values needs no padding, because a chunk has a multiple of kBlockNumel
// elements.
inline constexpr int64_t kSlotAlignment = kBlockNumel * int64_t{sizeof(float)};

// Says which elements a chunk has, and where its record and its checksums are.
struct Chunk {
  Range elements;  // positions in the group
  size_t group = 0;
  int slots = 0, narrow_slots = 0, narrow_bytes = 2;
  size_t file = 0;
  int64_t offset = 0;  // byte position of the chunk's record in the file; the record has slot after slot
  // The index of the chunk's first checksum among those of all chunks. Each slot has one checksum for each block. The
  // checksums of the first slot come first, then those of the second, and so on.
  size_t first_sum = 0;

  int64_t numel() const { return elements.size(); }
  int64_t bytes() const { return slot_begin(slots); }
  int64_t value_bytes(int slot) const { return slot < slots - narrow_slots ? 4 : narrow_bytes; }
  // Returns the byte position of a slot's values in the record. If `slot` equals `slots`, returns the end of the
  // record.
  int64_t slot_begin(int slot) const {
    const int wide = std::min(slot, slots - narrow_slots);
    return numel() * 4 * wide + align_up(numel() * narrow_bytes, kSlotAlignment) * (slot - wide);
  }
  size_t blocks() const { return size_t(ceil_div(numel(), kSumNumel)); }
  // Returns the elements of block `number`, as positions in the chunk. The values of these elements in one slot share a
  // checksum.
  Range block(size_t number) const {
    return {int64_t(number) * kSumNumel, std::min(int64_t(number + 1) * kSumNumel, numel())};
  }
  // Returns which bytes of the record have the values of block `number` in `slot`. For the last block, they include the
  // padding of the slot.
  Range block_bytes(int slot, size_t number) const {
    const int64_t begin = slot_begin(slot) + block(number).begin * value_bytes(slot);
    const bool is_last = number + 1 == blocks();
    return {begin, is_last ? slot_begin(slot + 1) : begin + kSumNumel * value_bytes(slot)};
  }
};

// Says where in some files the chunks of some groups are. The chunks go to the files in turn, and each chunk follows
// the previous chunk of its file without a gap. The planner and ChunkStore both use this class.
class ChunkLayout {
 public:
  // Throws ValueError as ChunkTotals does, and if there is no file.
  ChunkLayout(std::span<const ChunkGroup> groups, size_t num_files, int64_t chunk_numel = kChunkNumel);

  const std::vector<Chunk>& chunks() const { return chunks_; }
  // Returns the number of the chunk that has `element` of the group.
  size_t find(size_t group, int64_t element) const { return first_.at(group) + size_t(element / chunk_numel_); }
  int64_t numel(size_t group) const { return numels_.at(group); }
  // Returns the name of the group that has the byte at `offset` of the file.
  const std::string& group_at(size_t file, int64_t offset) const;
  int64_t file_bytes(size_t file) const { return file_bytes_.at(file); }
  int64_t total_bytes() const;
  const ChunkTotals& totals() const { return totals_; }

 private:
  int64_t chunk_numel_;
  ChunkTotals totals_;
  std::vector<Chunk> chunks_;
  std::vector<size_t> first_;       // the number of each group's first chunk
  std::vector<int64_t> numels_;     // elements of each group; 0 if the group has no slots
  std::vector<std::string> names_;  // name of each group
  std::vector<int64_t> file_bytes_;
};

}  // namespace zeroshard
