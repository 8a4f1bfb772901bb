#include "file/chunk_reader.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"

namespace zeroshard {

ChunkReader::ChunkReader(ChunkStore& store, Alone alone, size_t group, int slot)
    : store_(store), alone_(std::move(alone)), group_(group), slot_(slot) {}

void ChunkReader::read(Range range, float* to) {
  const ChunkLayout& layout = store_.layout();
  ZS_CHECK(range.begin >= 0 && range.begin <= range.end && range.end <= layout.numel(group_), "elements ", range.begin,
           " to ", range.end, " of group ", group_, ", which has ", layout.numel(group_));
  for (int64_t begin = range.begin; begin < range.end;) {
    const size_t number = layout.find(group_, begin);
    const Chunk& chunk = layout.chunks()[number];
    ZS_CHECK(slot_ >= 0 && slot_ < chunk.slots, "slot ", slot_, " of group ", group_, ", which has ", chunk.slots);
    if (chunk_ != number) fetch(number);
    const int64_t end = std::min(range.end, chunk.elements.end);
    std::memcpy(to + (begin - range.begin), memory_.get() + (begin - chunk.elements.begin) * int64_t(sizeof(float)),
                size_t(end - begin) * sizeof(float));
    begin = end;
  }
}

void ChunkReader::fetch(size_t chunk) {
  chunk_.reset();
  if (!memory_) {  // for the group's longest chunk: its first
    const ChunkLayout& layout = store_.layout();
    memory_ = allocate_direct(layout.chunks()[layout.find(group_, 0)].numel() * int64_t(sizeof(float)));
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
