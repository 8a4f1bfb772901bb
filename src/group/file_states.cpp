#include "group/file_states.h"

#include <exception>
#include <utility>

#include "device/flat_buffer.h"
#include "zeroshard/error.h"

namespace zeroshard {
namespace {

ChunkStore::Access access_of(OptimizerStates::Access access) {
  switch (access) {
    case OptimizerStates::Access::kRead:
      return ChunkStore::Access::kRead;
    case OptimizerStates::Access::kModify:
      return ChunkStore::Access::kModify;
    case OptimizerStates::Access::kOverwrite:
      return ChunkStore::Access::kOverwrite;
  }
  return ChunkStore::Access::kModify;
}

}  // namespace

SwapSpace::SwapSpace(std::span<const ChunkGroup> groups, ChunkStore::Options options, Io& io, Ledger& ledger, Tier tier,
                     OnFailure on_failure, const ChunkStore::Wrap& wrap)
    : reserved_(ledger, Category::kSwap, tier,
                ChunkTotals(groups, options.chunk_numel).memory_bytes(options.buffer_count)),
      on_failure_(std::move(on_failure)),
      store_(groups, std::move(options), io, wrap) {}

SwapSpace::~SwapSpace() = default;

template <typename Call>
void SwapSpace::told(const Call& call) {
  try {
    call();
  } catch (const std::exception& error) {
    if (on_failure_ && store_.has_failed()) std::exchange(on_failure_, {})(error.what());
    throw;
  }
}

void SwapSpace::lend(size_t group, Range range, ChunkStore::Access access, const ChunkStore::Use& use,
                     std::optional<int> slot) {
  const std::lock_guard lock(mutex_);
  told([&] { store_.lend(group, range, access, use, slot); });
}

void SwapSpace::will_need(size_t group, Range range) {
  const std::lock_guard lock(mutex_);
  told([&] { store_.will_need(group, range); });
}

FileStates::FileStates(SwapSpace& space, size_t group, const ShardLayout& layout, const GroupPlacement& place,
                       Ledger& ledger)
    : space_(space),
      group_(group),
      has_master_(place.master_weights.extent != Extent::kNothing),
      master_bytes_(place.master_weights.bytes_on(Tier::kFile, layout)),
      moment_bytes_(place.moments.bytes_on(Tier::kFile, layout)),
      ledger_(ledger) {
  ledger_.add(Category::kMasterWeights, Tier::kFile, master_bytes_);
  ledger_.add(Category::kMoments, Tier::kFile, moment_bytes_);
}

FileStates::~FileStates() {
  ledger_.remove(Category::kMasterWeights, Tier::kFile, master_bytes_);
  ledger_.remove(Category::kMoments, Tier::kFile, moment_bytes_);
}

void FileStates::lend(Range range, Access access, const Borrower& use) {
  space_.lend(group_, range, access_of(access), [&](Range part, std::span<float* const> values) {
    StateTensors tensors;
    for (float* const each : values) {
      at::Tensor tensor = view_memory(each, part.size(), at::kFloat, at::kCPU);
      if (has_master_ && !tensors.master.defined()) {
        tensors.master = std::move(tensor);
      } else {
        tensors.moments.push_back(std::move(tensor));
      }
    }
    use(part, tensors);
  });
}

void FileStates::lend_one(Range range, int state, Access access, const BorrowerOfOne& use) {
  const int slot = state == kMasterWeights ? 0 : state + (has_master_ ? 1 : 0);
  const auto lent = [&](Range part, std::span<float* const> values) {
    use(part, view_memory(values[0], part.size(), at::kFloat, at::kCPU));
  };
  space_.lend(group_, range, access_of(access), lent, slot);
}

}  // namespace zeroshard
