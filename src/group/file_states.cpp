#include "group/file_states.h"

#include <cstring>
#include <exception>
#include <utility>

#include "device/dtype.h"
#include "device/flat_buffer.h"
#include "zeroshard/error.h"

namespace zeroshard {

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

namespace {

// In place: bf16 values in the second half of the memory become fp32. Not by LibTorch, whose threads are busy.
void widen(float* memory, int64_t numel) {
  auto* const to = reinterpret_cast<std::byte*>(memory);
  const std::byte* const from = to + numel * 2;
  for (int64_t i = 0; i < numel; ++i) {
    uint16_t half = 0;
    std::memcpy(&half, from + i * 2, sizeof half);
    const uint32_t bits = uint32_t{half} << 16;
    std::memcpy(to + i * 4, &bits, sizeof bits);
  }
}

class FileReader final : public StateReader {
 public:
  FileReader(ChunkReader reader, at::ScalarType type) : reader_(std::move(reader)), type_(type) {}
  void read(Range range, float* to) override {
    if (type_ == at::kFloat) return reader_.read(range, to);
    reader_.read(range, reinterpret_cast<std::byte*>(to) + range.size() * 2);
    widen(to, range.size());
  }

 private:
  ChunkReader reader_;
  at::ScalarType type_;
};

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

FileStates::FileStates(SwapSpace& space, size_t group, const ShardLayout& layout, const GroupPlacement& place,
                       Ledger& ledger)
    : space_(space),
      group_(group),
      has_master_(place.master_weights.extent != Extent::kNothing),
      moment_type_(to_scalar_type(place.moments.dtype)),
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
      if (has_master_ && !tensors.master.defined()) {
        tensors.master = view_memory(each, part.size(), at::kFloat, at::kCPU);
      } else {
        tensors.moments.push_back(view_memory(each, part.size(), moment_type_, at::kCPU));
      }
    }
    use(part, tensors);
  });
}

void FileStates::lend_one(Range range, int state, Access access, const BorrowerOfOne& use) {
  const auto lent = [&](Range part, std::span<float* const> values) {
    use(part, view_memory(values[0], part.size(), type_of(state), at::kCPU));
  };
  space_.lend(group_, range, access_of(access), lent, slot_of(state));
}

std::unique_ptr<StateReader> FileStates::reader(int state) {
  return std::make_unique<FileReader>(space_.reader(group_, slot_of(state)), type_of(state));
}

}  // namespace zeroshard
