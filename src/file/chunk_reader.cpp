#include "file/chunk_reader.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"

namespace zeroshard {
ChunkReader::ChunkReader(ChunkStore& store, Alone alone, size_t group, int slot)
    : store_(store), alone_(std::move(alone)), group_(group), slot_(slot) {}

// Returns how many bytes a value of the slot has, which is equal in all chunks of the group. A group without chunks has
// no values to read, so for it the result does not matter.
int64_t ChunkReader::value_bytes() const {
  const ChunkLayout& layout = store_.layout();
  if (layout.numel(group_) == 0) return sizeof(float);
  const Chunk& chunk = layout.chunks()[layout.find(group_, 0)];
  ZS_CHECK(slot_ >= 0 && slot_ < chunk.slots, "slot ", slot_, " of group ", group_, ", which has ", chunk.slots);
  return chunk.value_bytes(slot_);
}

void ChunkReader::read(Range range, void* to) {
  const int64_t size = value_bytes();
  read_bytes({range.begin * size, range.end * size}, to);
}

void ChunkReader::read_bytes(Range bytes, void* to) {
  const ChunkLayout& layout = store_.layout();
  const int64_t size = value_bytes();
  ZS_CHECK(bytes.begin >= 0 && bytes.begin <= bytes.end && bytes.end <= layout.numel(group_) * size, "bytes ",
           bytes.begin, " to ", bytes.end, " of group ", group_, ", which has ", layout.numel(group_), " elements");
  for (int64_t begin = bytes.begin; begin < bytes.end;) {
    const size_t number = layout.find(group_, begin / size);
    const Chunk& chunk = layout.chunks()[number];
    if (chunk_ != number) fetch(number);
    const int64_t end = std::min(bytes.end, chunk.elements.end * size);
    std::memcpy(static_cast<std::byte*>(to) + (begin - bytes.begin),
                memory_.get() + (begin - chunk.elements.begin * size), size_t(end - begin));
    begin = end;
  }
}

void ChunkReader::fetch(size_t chunk) {
  chunk_.reset();
  if (!memory_) {  // large enough for every chunk of the group, because the first one is the longest
    const ChunkLayout& layout = store_.layout();
    const Chunk& longest = layout.chunks()[layout.find(group_, 0)];
    memory_ = allocate_direct(longest.slot_begin(slot_ + 1) - longest.slot_begin(slot_));
  }
  ChunkStore::SlotBlocks missing;
  alone_([&] { missing = store_.copy_buffered(chunk, slot_, memory_.get()); });
  try {
    store_.read_file(chunk, slot_, missing, memory_.get());
  } catch (const std::exception& error) {
    alone_([&] {
      store_.fail(error.what());
      throw;
    });
  }
  chunk_ = chunk;
}

}  // namespace zeroshard
