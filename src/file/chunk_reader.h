#pragma once
#include <functional>
#include <optional>

#include "file/chunk_store.h"

namespace zeroshard {

// Reads one slot of a group's values on a second thread, while another thread borrows from the store. Nobody may borrow
// the group to write while the reader is in use. The reader uses neither the store's buffers nor its plan. It reads the
// slot of a whole chunk into its own memory and keeps it there, so that values which are requested in order are read
// once.
class ChunkReader {
 public:
  // Runs `call` while no other thread calls the store. Exceptions of `call` pass through.
  using Alone = std::function<void(const std::function<void()>& call)>;

  // `store` must outlive the reader.
  ChunkReader(ChunkStore& store, Alone alone, size_t group, int slot);
  // Reads the values of the group's elements in `range` to `to`. If it throws IoError, the store has failed, too.
  void read(Range range, void* to);
  // Works like read(), for a slot that stores the bytes of values of another dtype. `bytes` is a range of bytes of the
  // slot.
  void read_bytes(Range bytes, void* to);

 private:
  void fetch(size_t chunk);
  int64_t value_bytes() const;

  ChunkStore& store_;
  Alone alone_;
  size_t group_;
  int slot_;
  DirectBuffer memory_;          // has the slot of one chunk; null before the first read
  std::optional<size_t> chunk_;  // the chunk in memory_
};

}  // namespace zeroshard
