#include "store/array.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "device/cut.h"
#include "device/flat_buffer.h"
#include "device/host_copy.h"
#include "kernels/kernels.h"

namespace zeroshard {
namespace {

Range before(Range range, int64_t border) {
  return {std::min(range.begin, border), std::min(range.end, border)};
}

// Returns the part of `range` after the border. Positions of the result count from the border, like those of the
// storage `rest`.
Range behind(Range range, int64_t border) {
  return Range{std::max(range.begin, border), std::max(range.end, border)} - border;
}

class SplitReader final : public ArrayReader {
 public:
  // `bytes` is the size of an element in the memory that the readers fill.
  SplitReader(std::unique_ptr<ArrayReader> first, int64_t border, std::unique_ptr<ArrayReader> rest, int64_t bytes)
      : first_(std::move(first)), border_(border), rest_(std::move(rest)), bytes_(bytes) {}
  void read(Range range, void* to) override {
    const Range first = before(range, border_), rest = behind(range, border_);
    if (first.size() > 0) first_->read(first, to);
    if (rest.size() > 0) rest_->read(rest, static_cast<std::byte*>(to) + first.size() * bytes_);
  }

 private:
  std::unique_ptr<ArrayReader> first_;
  int64_t border_;
  std::unique_ptr<ArrayReader> rest_;
  int64_t bytes_;
};

at::Tensor scales_of(const at::Tensor& all, Range range) {
  ZS_ASSERT(range.begin % kScaledNumel == 0, "element ", range.begin, " is inside a block");
  return cut(all, {range.begin / kScaledNumel, ceil_div(range.end, kScaledNumel)});
}

// Returns the tensor itself if it is on the host. Otherwise returns an uninitialised host tensor of the same size.
at::Tensor on_host(const at::Tensor& tensor) {
  return tensor.is_cpu() ? tensor : at::empty(tensor.sizes(), tensor.options().device(at::kCPU));
}

kernels::CodedValues coded(void* codes, const at::Tensor& scales, int slot) {
  return {codes, scales.data_ptr<float>(), /*is_signed=*/slot == 0};
}

// Reads codes, and decodes them to fp32.
class CodeReader final : public ArrayReader {
 public:
  CodeReader(std::unique_ptr<ArrayReader> codes, at::Tensor scales, int slot)
      : codes_(std::move(codes)), scales_(std::move(scales)), slot_(slot) {}
  void read(Range range, void* to) override {
    const int64_t first = range.begin / kScaledNumel, begin = range.begin - first * kScaledNumel;
    bytes_.resize(size_t(begin + range.size()));
    codes_->read(range, bytes_.data() + begin);
    kernels::CodedValues from = coded(bytes_.data(), scales_, slot_);
    from.scales += first;
    kernels::decode(from, begin, begin + range.size(), static_cast<float*>(to));
  }

 private:
  std::unique_ptr<ArrayReader> codes_;
  at::Tensor scales_;
  int slot_;
  std::vector<uint8_t> bytes_;
};

}  // namespace

std::unique_ptr<Storage> states_in_memory(const StateTensors& states) {
  std::vector<at::Tensor> columns = states.moments;
  if (states.master.defined()) columns.insert(columns.begin(), states.master);
  return std::make_unique<MemoryStorage>(std::move(columns));
}

StateTensors StateTensors::slice(Range range) const {
  StateTensors part;
  if (master.defined()) part.master = cut(master, range);
  for (const at::Tensor& moment : moments) part.moments.push_back(cut(moment, range));
  for (const at::Tensor& each : scales) part.scales.push_back(scales_of(each, range));
  return part;
}

Array::Array(std::unique_ptr<Storage> storage, Options options)
    : storage_(std::move(storage)),
      rest_(std::move(options.rest)),
      border_(options.border),
      has_master_(options.has_master),
      scales_(std::move(options.scales)) {
  const std::vector<at::Tensor>* const columns = rest_ ? nullptr : storage_->in_memory();
  // A storage without columns has no numel(), so the range is empty then.
  if (columns != nullptr) in_memory_ = tensors_of({0, columns->empty() ? 0 : storage_->numel()}, *columns);
  if (options.while_a_save_reads) hold_ = std::make_unique<WriteHold>(std::move(*options.while_a_save_reads));
}

Array::Array(at::Tensor values) : Array(std::make_unique<MemoryStorage>(std::move(values))) {}

Array::Array(StateTensors states)
    : Array(states_in_memory(states), Options{.has_master = states.master.defined(), .scales = states.scales}) {}

StateTensors Array::tensors_of(Range part, std::span<const at::Tensor> columns) const {
  StateTensors tensors;
  if (has_master_) tensors.master = columns.front();
  tensors.moments.assign(columns.begin() + column_of(0), columns.end());
  for (const at::Tensor& each : scales_) tensors.scales.push_back(scales_of(each, part));
  return tensors;
}

void Array::lend_columns(Range range, std::optional<int> column, Access access, const Storage::Use& use) {
  if (hold_ && access != Access::kRead) hold_->await_readers();
  const Range first = before(range, border_), rest = behind(range, border_);
  if (first.size() > 0) storage_->lend(first, column, access, use);
  if (rest.size() == 0) return;
  rest_->lend(rest, column, access,
              [&](Range part, std::span<const at::Tensor> columns) { use(part + border_, columns); });
}

void Array::lend(Range range, Access access, const Borrower& use) {
  lend_columns(range, std::nullopt, access,
               [&](Range part, std::span<const at::Tensor> columns) { use(part, tensors_of(part, columns)); });
}

void Array::lend_one(Range range, int state, Access access, const BorrowerOfOne& use) {
  lend_columns(range, column_of(state), access,
               [&](Range part, std::span<const at::Tensor> columns) { use(part, columns.front()); });
}

void Array::write_moment(Range range, int slot, const at::Tensor& values) {
  const at::Tensor from = has_codes() ? values.to(at::kCPU, at::kFloat).contiguous() : values;
  lend_one(range, slot, Access::kOverwrite, [&](Range part, const at::Tensor& to) {
    const at::Tensor piece = cut(from, part - range.begin);
    if (!has_codes()) return void(to.copy_(piece));
    const at::Tensor scales = scales_of(scales_.at(size_t(slot)), part);
    const at::Tensor codes = on_host(to), of_codes = on_host(scales);
    kernels::encode(piece.const_data_ptr<float>(), part.size(), coded(codes.data_ptr(), of_codes, slot));
    if (to.is_cpu()) return;
    to.copy_(codes);
    scales.copy_(of_codes);
  });
}

void Array::read_moment(Range part, int slot, const at::Tensor& values, void* to) const {
  if (!has_codes()) return void(view_memory(to, part.size(), at::kFloat, at::kCPU).copy_(values));
  const int64_t begin = part.begin % kScaledNumel;
  const at::Tensor read = values.cpu(),
                   scales = scales_of(scales_.at(size_t(slot)), {part.begin - begin, part.end}).cpu();
  std::byte* const codes = static_cast<std::byte*>(read.data_ptr()) - begin;
  const kernels::CodedValues from = coded(codes, scales, slot);
  kernels::decode(from, begin, begin + part.size(), static_cast<float*>(to));
}

std::optional<ChunkStore::Announced> Array::place_in_files(Range range) const {
  ZS_ASSERT(!rest_, "the range may lie in two storages");
  return storage_->place_in_files(range);
}

void Array::will_need(Range range) {
  if (const Range part = before(range, border_); part.size() > 0) storage_->will_need(part);
  if (const Range part = behind(range, border_); part.size() > 0) rest_->will_need(part);
}

std::unique_ptr<ArrayReader> Array::reader(int state) {
  const int column = column_of(state);
  const bool are_codes = has_codes() && state != kMasterWeights;
  std::unique_ptr<ArrayReader> values = storage_->reader(column);
  if (rest_)
    values = std::make_unique<SplitReader>(std::move(values), border_, rest_->reader(column),
                                           are_codes ? int64_t{1} : int64_t{sizeof(float)});
  if (!are_codes) return values;
  return std::make_unique<CodeReader>(std::move(values), scales_.at(size_t(state)), state);
}

void Array::read(Range range, void* to) {
  lend(range, Access::kRead, [&](Range part, const at::Tensor& values) {
    auto* const at = static_cast<char*>(to) + (part.begin - range.begin) * values.element_size();
    std::memcpy(at, values.const_data_ptr(), size_t(values.nbytes()));
  });
}

void Array::begin_read(Range range, void* to, at::Device device, const SideStream& stream) {
  if (device.is_cpu()) return read(range, to);
  ZS_ASSERT(!rest_, "only one storage can know of the copies");
  const SideStream::Scope scope(stream);
  lend(range, Access::kRead, [&](Range part, const at::Tensor& values) {
    auto* const at = static_cast<char*>(to) + (part.begin - range.begin) * values.element_size();
    begin_copy_from_host(at, values.const_data_ptr(), int64_t(values.nbytes()), device);
    storage_->read_on(stream);
  });
}

at::Tensor Array::part(Range range) {
  return in_memory_ ? view(range) : copy_of(range);
}

at::Tensor Array::view(Range range) const {
  ZS_ASSERT(in_memory_, "the values are in files");
  return cut(in_memory_->moments.at(0), range);
}

at::Tensor Array::copy_of(Range range) {
  const at::Tensor copy = at::empty({range.size()}, type());
  read(range, copy.data_ptr());
  return copy;
}

}  // namespace zeroshard
