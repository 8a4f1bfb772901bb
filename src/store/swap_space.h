#pragma once
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>

#include "file/chunk_reader.h"
#include "file/chunk_store.h"
#include "memory/ledger.h"

namespace zeroshard {

// The swap files of a run's optimizer states, or of its parameters or gradients. Owns the files' buffers. All groups
// share the files and the buffers.
class SwapSpace {
 public:
  // Called once, before the first error of a read or a write is thrown.
  using OnFailure = std::function<void(const std::string& message)>;

  // See ChunkStore for the arguments. The ledger counts the buffers on `tier`. `io` and `ledger` outlive this object.
  SwapSpace(std::span<const ChunkGroup> groups, ChunkStore::Options options, Io& io, Ledger& ledger, Tier tier,
            OnFailure on_failure = {}, const ChunkStore::Wrap& wrap = {});
  ~SwapSpace();
  SwapSpace(const SwapSpace&) = delete;
  SwapSpace& operator=(const SwapSpace&) = delete;

  const ChunkStore& store() const { return store_; }
  // Returns 0, 1, 2 and so on: the number of the next group, for code that makes groups in the order of `groups`.
  size_t next_group() { return next_group_++; }
  void lend(size_t group, Range range, ChunkStore::Access access, const ChunkStore::Use& use,
            std::optional<int> slot = std::nullopt);
  // Like ChunkStore::read_on(); `use` calls it.
  void read_on(std::shared_ptr<ChunkStore::Reader> reader) { store_.read_on(std::move(reader)); }
  void will_need(size_t group, Range range);
  // Returns a reader for another thread than the one that lends.
  ChunkReader reader(size_t group, int slot);
  void will_need_next(std::span<const ChunkStore::Announced> next);

 private:
  template <typename Call>
  void told(const Call& call);

  Reservation reserved_;  // made before the store
  OnFailure on_failure_;
  std::mutex mutex_;  // one thread of the user's script may read states while another steps
  ChunkStore store_;
  size_t next_group_ = 0;
};

}  // namespace zeroshard
