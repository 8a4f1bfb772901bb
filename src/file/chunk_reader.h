#pragma once
#include <functional>
#include <optional>

#include "file/chunk_store.h"

namespace zeroshard {

// Lets a second thread read one slot of a group's values, while another thread borrows from the store. Nobody may
// borrow the group to write while the reader is in use. The reader copies values that are in the store's buffers and
// reads the others from the file, but takes no buffer and does not change what is announced to the store. It keeps the
// slot of one whole chunk in memory of its own, so each value is read only once if values are requested in order.
class ChunkReader {
 public:
  // Runs `call` while no other thread calls the store, and throws what `call` throws.
  using Alone = std::function<void(const std::function<void()>& call)>;

  // `store` must outlive the reader.
  ChunkReader(ChunkStore& store, Alone alone, size_t group, int slot);
  // Copies the values of the group's elements in `range` to `to`, in the format of the slot. If read() throws IoError,
  // the store has failed, too, as after ChunkStore::fail().
  void read(Range range, void* to);
  // Works like read(), but for a range of bytes. Position 0 is the first byte of the slot's value for the group's first
  // element. This function is for slots whose bytes are used for values of another size.
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
