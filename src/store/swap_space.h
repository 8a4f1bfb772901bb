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

// The swap files of a run's optimizer states, or of its parameters or gradients. All groups share the files and their
// buffers. Any thread may call lend(), will_need() and will_need_next().
class SwapSpace {
 public:
  // The swap space calls this function at most once, just before it throws the first error that makes its store fail: a
  // failed read or write, or a lack of memory.
  using OnFailure = std::function<void(const std::string& message)>;

  // ChunkStore describes the arguments. The ledger counts the buffers and the checksums on `tier`. `io` and `ledger`
  // must outlive this object.
  SwapSpace(std::span<const ChunkGroup> groups, ChunkStore::Options options, Io& io, Ledger& ledger, Tier tier,
            OnFailure on_failure = {}, const ChunkStore::Wrap& wrap = {});
  ~SwapSpace();
  SwapSpace(const SwapSpace&) = delete;
  SwapSpace& operator=(const SwapSpace&) = delete;

  const ChunkStore& store() const { return store_; }
  // Returns the number of the next group: 0 at the first call, 1 at the second, and so on. Code that makes its groups
  // in the order of the constructor's `groups` numbers them with this function.
  size_t next_group() { return next_group_++; }
  void lend(size_t group, Range range, ChunkStore::Access access, const ChunkStore::Use& use,
            std::optional<int> slot = std::nullopt);
  // Calls ChunkStore::read_on(). Only `use` may call it.
  void read_on(std::shared_ptr<ChunkStore::Reader> reader) { store_.read_on(std::move(reader)); }
  void will_need(size_t group, Range range);
  // Returns a reader for another thread than the one that lends.
  ChunkReader reader(size_t group, int slot);
  void will_need_next(std::span<const ChunkStore::Announced> next);

 private:
  template <typename Call>
  void told(const Call& call);

  Reservation reserved_;  // declared before the store, because memory is counted before it is allocated
  OnFailure on_failure_;
  std::mutex mutex_;  // needed because one thread of the user's script can read states while another one makes a step
  ChunkStore store_;
  size_t next_group_ = 0;
};

}  // namespace zeroshard
