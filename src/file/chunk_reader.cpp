#include "file/chunk_reader.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"

namespace zeroshard {
namespace {

constexpr int64_t kValueBytes = sizeof(float);

}  // namespace

ChunkReader::ChunkReader(ChunkStore& store, Alone alone, size_t group, int slot)
    : store_(store), alone_(std::move(alone)), group_(group), slot_(slot) {}

void ChunkReader::read(Range range, float* to) {
  read_bytes({range.begin * kValueBytes, range.end * kValueBytes}, to);
}

void ChunkReader::read_bytes(Range bytes, void* to) {
  const ChunkLayout& layout = store_.layout();
  ZS_CHECK(bytes.begin >= 0 && bytes.begin <= bytes.end && bytes.end <= layout.numel(group_) * kValueBytes, "bytes ",
           bytes.begin, " to ", bytes.end, " of group ", group_, ", which has ", layout.numel(group_), " elements");
  for (int64_t begin = bytes.begin; begin < bytes.end;) {
    const size_t number = layout.find(group_, begin / kValueBytes);
    const Chunk& chunk = layout.chunks()[number];
    ZS_CHECK(slot_ >= 0 && slot_ < chunk.slots, "slot ", slot_, " of group ", group_, ", which has ", chunk.slots);
    if (chunk_ != number) fetch(number);
    const int64_t end = std::min(bytes.end, chunk.elements.end * kValueBytes);
    std::memcpy(static_cast<std::byte*>(to) + (begin - bytes.begin),
                memory_.get() + (begin - chunk.elements.begin * kValueBytes), size_t(end - begin));
    begin = end;
  }
}

void ChunkReader::fetch(size_t chunk) {
  chunk_.reset();
  if (!memory_) {  // for the group's longest chunk: its first
    const ChunkLayout& layout = store_.layout();
    memory_ = allocate_direct(layout.chunks()[layout.find(group_, 0)].numel() * kValueBytes);
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
