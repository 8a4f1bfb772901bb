#pragma once
#include <functional>
#include <optional>

#include "file/chunk_store.h"

namespace zeroshard {

// Reads one slot of a group's values on a thread of its own, beside one that lends from the store, as long as nobody
// borrows the group to write. It reads the slot of a whole chunk at a time, past the store's buffers and plan, and
// keeps that: values that are asked for one after the other are read once.
class ChunkReader {
 public:
  // Runs `call` while nobody else calls the store; passes on what it throws.
  using Alone = std::function<void(const std::function<void()>& call)>;

  // `store` outlives it.
  ChunkReader(ChunkStore& store, Alone alone, size_t group, int slot);
  // Throws IoError; then the store has failed, too.
  void read(Range range, void* to);
  // The same where values are bytes of something else: `bytes` counts those of the slot.
  void read_bytes(Range bytes, void* to);

 private:
  void fetch(size_t chunk);
  int64_t value_bytes() const;

  ChunkStore& store_;
  Alone alone_;
  size_t group_;
  int slot_;
  DirectBuffer memory_;          // of the slot of a chunk; null before the first read
  std::optional<size_t> chunk_;  // whose values it has
};

}  // namespace zeroshard
