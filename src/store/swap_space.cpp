#include "store/swap_space.h"

#include <exception>
#include <utility>

namespace zeroshard {

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

ChunkReader SwapSpace::reader(size_t group, int slot) {
  const auto alone = [this](const std::function<void()>& call) {
    const std::lock_guard lock(mutex_);
    told(call);
  };
  return {store_, alone, group, slot};
}

void SwapSpace::will_need(size_t group, Range range) {
  const std::lock_guard lock(mutex_);
  told([&] { store_.will_need(group, range); });
}

void SwapSpace::will_need_next(std::span<const ChunkStore::Announced> next) {
  const std::lock_guard lock(mutex_);
  told([&] { store_.will_need_next(next); });
}

}  // namespace zeroshard
