#include "group/file_shard.h"

#include <ATen/ops/empty.h>

#include <cstring>
#include <memory>
#include <utility>

#include "base/align.h"
#include "device/dtype.h"
#include "device/flat_buffer.h"
#include "device/host_copy.h"

namespace zeroshard {
namespace {

constexpr int64_t kValueBytes = sizeof(float);  // of the store

class CopyToDevice final : public ChunkStore::Reader {
 public:
  explicit CopyToDevice(c10::Event end) : end_(std::move(end)) {}
  bool is_done() override { return end_.query(); }
  void await() override { end_.synchronize(); }

 private:
  c10::Event end_;
};

}  // namespace

FileShard::FileShard(SwapSpace& space, Options options, Ledger& ledger)
    : space_(space),
      group_(options.group),
      dtype_(options.dtype),
      numel_(options.numel),
      category_(options.category),
      ledger_(ledger),
      hold_(std::move(options.while_a_save_reads)) {
  ledger_.add(category_, Tier::kFile, numel_ * element_size(dtype_));
}

FileShard::~FileShard() {
  ledger_.remove(category_, Tier::kFile, numel_ * element_size(dtype_));
}

Range FileShard::values_of(Range range) const {
  const int64_t size = element_size(dtype_);
  if (range.size() == 0) return {};
  // Whole blocks at the end: what is overwritten is not read for the sake of padding.
  const int64_t end =
      range.end == numel_ ? space_.store().layout().numel(group_) : ceil_div(range.end * size, kValueBytes);
  return {range.begin * size / kValueBytes, end};
}

void FileShard::lend(Range range, OptimizerStates::Access access, const Borrower& use) {
  const int64_t size = element_size(dtype_);
  const Range values = values_of(range);
  if (values.size() == 0) return;
  if (access != OptimizerStates::Access::kRead) hold_.await_readers();
  // A value may be of an element that is lent and of one that is not.
  const bool is_whole = values.begin * kValueBytes == range.begin * size &&
                        (range.end == numel_ || values.end * kValueBytes == range.end * size);
  if (access == OptimizerStates::Access::kOverwrite && !is_whole) access = OptimizerStates::Access::kModify;
  space_.lend(group_, values, access_of(access), [&](Range lent, std::span<float* const> slots) {
    const Range part = intersect(range, {lent.begin * kValueBytes / size, ceil_div(lent.end * kValueBytes, size)});
    if (part.size() == 0) return;  // padding alone
    auto* const first = reinterpret_cast<char*>(slots[0]) + (part.begin * size - lent.begin * kValueBytes);
    use(part, view_memory(first, part.size(), to_scalar_type(dtype_), at::kCPU));
  });
}

void FileShard::read(Range range, void* to) {
  lend(range, OptimizerStates::Access::kRead, [&](Range part, const at::Tensor& params) {
    auto* const at = static_cast<char*>(to) + (part.begin - range.begin) * element_size(dtype_);
    std::memcpy(at, params.const_data_ptr(), size_t(params.nbytes()));
  });
}

void FileShard::begin_read(Range range, void* to, at::Device device, const SideStream& stream) {
  if (device.is_cpu()) return read(range, to);
  const SideStream::Scope scope(stream);
  lend(range, OptimizerStates::Access::kRead, [&](Range part, const at::Tensor& params) {
    auto* const at = static_cast<char*>(to) + (part.begin - range.begin) * element_size(dtype_);
    begin_copy_from_host(at, params.const_data_ptr(), int64_t(params.nbytes()), device);
    space_.read_on(std::make_shared<CopyToDevice>(stream.record()));
  });
}

at::Tensor FileShard::copy_of(Range range) {
  const at::Tensor copy = at::empty({range.size()}, to_scalar_type(dtype_));
  read(range, copy.data_ptr());
  return copy;
}

}  // namespace zeroshard
