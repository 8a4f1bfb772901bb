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

// The swap files of a run's optimizer states, or of its parameters or gradients, which the groups share, with their
// buffers.
class SwapSpace {
 public:
  // Told once, before the first error of a read or a write is thrown.
  using OnFailure = std::function<void(const std::string& message)>;

  // See ChunkStore. The ledger counts the buffers on `tier`; `io` and `ledger` outlive this.
  SwapSpace(std::span<const ChunkGroup> groups, ChunkStore::Options options, Io& io, Ledger& ledger, Tier tier,
            OnFailure on_failure = {}, const ChunkStore::Wrap& wrap = {});
  ~SwapSpace();
  SwapSpace(const SwapSpace&) = delete;
  SwapSpace& operator=(const SwapSpace&) = delete;

  const ChunkStore& store() const { return store_; }
  // The number of the next group, for who makes groups in the order in which they were given.
  size_t next_group() { return next_group_++; }
  void lend(size_t group, Range range, ChunkStore::Access access, const ChunkStore::Use& use,
            std::optional<int> slot = std::nullopt);
  // As ChunkStore::read_on(): called by `use`.
  void read_on(std::shared_ptr<ChunkStore::Reader> reader) { store_.read_on(std::move(reader)); }
  void will_need(size_t group, Range range);
  // For a thread beside those that lend.
  ChunkReader reader(size_t group, int slot);
  void will_need_next(std::span<const ChunkStore::Announced> next);

 private:
  template <typename Call>
  void told(const Call& call);

  Reservation reserved_;  // before the store
  OnFailure on_failure_;
  std::mutex mutex_;  // a thread of the script may read states while another one steps
  ChunkStore store_;
  size_t next_group_ = 0;
};

}  // namespace zeroshard
