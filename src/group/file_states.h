#pragma once
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "file/chunk_reader.h"
#include "file/chunk_store.h"
#include "group/optimizer_states.h"
#include "memory/ledger.h"
#include "placement/placement.h"

namespace zeroshard {

ChunkStore::Access access_of(OptimizerStates::Access access);

// The swap files of a run's optimizer states, or of its parameters, which the groups share, with their buffers.
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
};

// States in swap files: number `group` of those that `space` was made for, of the elements that `place` has in files.
// On loan they are in memory of the host.
class FileStates final : public OptimizerStates {
 public:
  // `space` and `ledger`, which counts the bytes in files, outlive the states.
  FileStates(SwapSpace& space, size_t group, const ShardLayout& layout, const GroupPlacement& place, Ledger& ledger);
  ~FileStates() override;
  void lend(Range range, Access access, const Borrower& use) override;
  void lend_one(Range range, int state, Access access, const BorrowerOfOne& use) override;
  void will_need(Range range) override { space_.will_need(group_, range); }
  std::unique_ptr<StateReader> reader(int state) override;

 private:
  at::ScalarType type_of(int state) const { return state == kMasterWeights ? at::kFloat : moment_type_; }
  int slot_of(int state) const { return state == kMasterWeights ? 0 : state + (has_master_ ? 1 : 0); }

  SwapSpace& space_;
  size_t group_;
  bool has_master_;
  at::ScalarType moment_type_;
  int64_t master_bytes_, moment_bytes_;
  Ledger& ledger_;
};

}  // namespace zeroshard
