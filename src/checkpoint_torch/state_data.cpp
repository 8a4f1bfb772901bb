#include "checkpoint_torch/state_data.h"

#include <algorithm>
#include <array>
#include <bitset>
#include <map>

#include "base/align.h"
#include "base/check.h"
#include "device/cut.h"
#include "device/flat_buffer.h"
#include "device/host_copy.h"
#include "device/mover.h"
#include "device/pinned_memory.h"
#include "optim/written.h"
#include "zeroshard/error.h"

namespace zeroshard {
namespace {

constexpr int64_t kSavedBytes = sizeof(float);  // size of a saved element of a state

class TensorData final : public SliceData {
 public:
  explicit TensorData(at::Tensor tensor) : tensor_(std::move(tensor)) {}
  void read(int64_t offset, int64_t bytes, void* to) const override {
    copy_to_host(to, address() + offset, bytes, tensor_.device());
  }
  void write(int64_t offset, int64_t bytes, const void* from) override {
    copy_from_host(address() + offset, from, bytes, tensor_.device());
  }
  void begin_read(int64_t offset, int64_t bytes, void* to) const override {
    begin_copy_to_host(to, address() + offset, bytes, tensor_.device());
  }
  void begin_write(int64_t offset, int64_t bytes, const void* from) override {
    begin_copy_from_host(address() + offset, from, bytes, tensor_.device());
  }
  std::byte* on_host() const override { return tensor_.is_cpu() ? address() : nullptr; }

 private:
  std::byte* address() const { return static_cast<std::byte*>(tensor_.data_ptr()); }

  at::Tensor tensor_;
};

// Turns an error of a swap file into a StateError. Otherwise a save or a load would take it for an error of the
// checkpoint's files.
template <typename Call>
void told_as_state(const Call& call) {
  try {
    call();
  } catch (const IoError& error) {
    throw StateError(error.what());
  }
}

// Collects values of 8-bit moments that are written in pieces. A block of kScaledNumel elements, which share a scale,
// is encoded as a whole, but pieces need not end where blocks end. So the pieces of a block are kept until it is
// complete.
class PartialBlocks {
 public:
  explicit PartialBlocks(const ShardedGroup& group, int slot) : group_(group), slot_(slot) {}
  void write(Range range, const float* from);

 private:
  struct Block {
    std::array<float, size_t(kScaledNumel)> values{};
    std::bitset<size_t(kScaledNumel)> written;
  };
  void add(Range piece, const float* from, int64_t end);
  void encode(Range range, const float* from) const {
    const at::Tensor values = view_memory(const_cast<float*>(from), range.size(), at::kFloat, at::kCPU);
    group_.states().write_moment(range, slot_, values);
  }

  const ShardedGroup& group_;
  int slot_;
  std::map<int64_t, Block> blocks_;  // key: first element of the block
};

// Encodes the blocks that lie whole in `range`, and calls add() for the pieces of other blocks. `range` must lie within
// one parameter.
void PartialBlocks::write(Range range, const float* from) {
  int64_t end = range.end;  // end of the parameter
  for (size_t i = 0; i < group_.num_params(); ++i) {
    const Range own = group_.state_range(i);
    if (intersect(own, range).size() == 0) continue;
    ZS_ASSERT(intersect(own, range) == range, "elements ", range.begin, " to ", range.end, " are of two parameters");
    end = own.end;
    break;
  }
  const int64_t begin = std::min(align_up(range.begin, kScaledNumel), range.end);
  const int64_t whole = range.end == end ? end : std::max(begin, range.end / kScaledNumel * kScaledNumel);
  if (begin > range.begin) add({range.begin, begin}, from, end);
  if (whole > begin) encode({begin, whole}, from + (begin - range.begin));
  if (range.end > whole) add({whole, range.end}, from + (whole - range.begin), end);
}

// Adds a piece of one block, and encodes the block if it is complete now. `end` is the end of the block's parameter.
void PartialBlocks::add(Range piece, const float* from, int64_t end) {
  const int64_t first = piece.begin / kScaledNumel * kScaledNumel;
  const int64_t numel = std::min(first + kScaledNumel, end) - first;
  Block& block = blocks_[first];
  std::copy_n(from, piece.size(), block.values.begin() + (piece.begin - first));
  for (int64_t i = piece.begin; i < piece.end; ++i) block.written.set(size_t(i - first));
  if (int64_t(block.written.count()) < numel) return;
  encode({first, first + numel}, block.values.data());
  blocks_.erase(first);
}

// One state of a group, or the parameters of a group that are in files.
class ArrayData final : public SliceData {
 public:
  // `bytes` is the size of a saved element.
  ArrayData(const ShardedGroup& group, Array& array, int state, int64_t bytes, bool writers_wait)
      : group_(group), array_(array), state_(state), bytes_(bytes), writers_wait_(writers_wait), codes_(group, state) {}
  void read(int64_t offset, int64_t bytes, void* to) const override {
    lend(offset, bytes, Array::Access::kRead, [&](int64_t at, Range part, const at::Tensor& values) {
      read_values(part, values, static_cast<std::byte*>(to) + at);
    });
    if (state_ == kMasterWeights && group_.users_may_write() && array_.in_memory() == nullptr)
      take_params(offset, bytes, view_memory(to, bytes / bytes_, at::kFloat, at::kCPU));
  }
  void write(int64_t offset, int64_t bytes, const void* from) override {
    if (are_codes()) return write_codes(offset, bytes, from);
    lend(offset, bytes, Array::Access::kOverwrite, [&](int64_t at, Range, const at::Tensor& values) {
      write_values(values, static_cast<const std::byte*>(from) + at);
    });
  }
  void begin_read(int64_t offset, int64_t bytes, void* to) const override {
    lend(offset, bytes, Array::Access::kRead, [&](int64_t at, Range part, const at::Tensor& values) {
      std::byte* const there = static_cast<std::byte*>(to) + at;
      if (values.element_size() != bytes_) return read_values(part, values, there);
      TensorData(values).begin_read(0, int64_t(values.nbytes()), there);
    });
  }
  void begin_write(int64_t offset, int64_t bytes, const void* from) override {
    if (are_codes()) return write_codes(offset, bytes, from);
    lend(offset, bytes, Array::Access::kOverwrite, [&](int64_t at, Range, const at::Tensor& values) {
      const std::byte* const there = static_cast<const std::byte*>(from) + at;
      if (values.element_size() != bytes_) return write_values(values, there);
      TensorData(values).begin_write(0, int64_t(values.nbytes()), there);
    });
  }
  bool writers_wait() const override { return writers_wait_; }
  std::byte* on_host() const override {
    const StateTensors* const all = array_.in_memory();
    const bool is_as_saved = all != nullptr && all->at(state_).element_size() == bytes_;
    return is_as_saved ? TensorData(all->at(state_)).on_host() : nullptr;
  }

 private:
  // Copies the user's writes to parameters into `copy`, which has the master weights. Unless the parameters are fp32,
  // also copies them into the master weights themselves.
  void take_params(int64_t offset, int64_t bytes, at::Tensor copy) const {
    const Range range{offset / bytes_, (offset + bytes) / bytes_};
    const at::Tensor params = cut(group_.updated_parameters(), range).cpu();
    // The master weights need not be written here for fp32 parameters on a device, because each update copies these
    // parameters to them anyway.
    if (params.scalar_type() == at::kFloat) return void(copy.copy_(params));
    if (!is_written(copy, params)) return;
    take_written(copy, params);
    group_.forget_parameters();
    const auto* const from = static_cast<const std::byte*>(copy.data_ptr());
    lend(offset, bytes, Array::Access::kOverwrite,
         [&](int64_t at, Range, const at::Tensor& master) { write_values(master, from + at); });
  }
  bool are_codes() const { return array_.has_codes() && state_ != kMasterWeights; }
  void write_codes(int64_t offset, int64_t bytes, const void* from) {
    told_as_state([&] { codes_.write({offset / bytes_, (offset + bytes) / bytes_}, static_cast<const float*>(from)); });
  }
  // Converts moments that are stored in fewer than 32 bits to fp32.
  void read_values(Range part, const at::Tensor& values, void* to) const {
    if (values.element_size() == bytes_) return TensorData(values).read(0, int64_t(values.nbytes()), to);
    array_.read_moment(part, state_, values, to);
  }
  // Rounds to nearest if `values` are stored in fewer than 32 bits. Values from read_values() are restored exactly.
  void write_values(const at::Tensor& values, const void* from) const {
    if (values.element_size() == bytes_) return TensorData(values).write(0, int64_t(values.nbytes()), from);
    values.copy_(view_memory(const_cast<void*>(from), values.numel(), at::kFloat, at::kCPU));
  }
  // Borrows elements. `offset` and `bytes` count bytes of saved elements. Calls use(at, part, values) for consecutive
  // parts. `at` counts the bytes of saved elements from `offset` to the part.
  template <typename Use>
  void lend(int64_t offset, int64_t bytes, Array::Access access, Use use) const {
    const Range range{offset / bytes_, (offset + bytes) / bytes_};
    told_as_state([&] {
      array_.lend_one(range, state_, access, [&](Range part, const at::Tensor& values) {
        use((part.begin - range.begin) * bytes_, part, values);
      });
    });
  }

  const ShardedGroup& group_;
  Array& array_;
  int state_;
  int64_t bytes_;
  bool writers_wait_;
  PartialBlocks codes_;
};

// State that is read while training continues. Writers wait until reading has ended.
class HeldData : public SliceData {
 public:
  void write(int64_t, int64_t, const void*) final { ZS_ASSERT(false, "what is held is read alone"); }
  bool is_held() const final { return true; }
  void end_reading() noexcept override { reading_.reset(); }

 protected:
  explicit HeldData(WriteHold& hold) : reading_(hold.read()) {}

 private:
  WriteHold::Reading reading_;
};

class HeldArray final : public HeldData {
 public:
  // `bytes` is the size of an element as it is read.
  HeldArray(Array& array, int state, int64_t bytes)
      : HeldData(*array.hold()), bytes_(bytes), reader_(array.reader(state)) {}
  void read(int64_t offset, int64_t bytes, void* to) const override {
    told_as_state([&] { reader_->read({offset / bytes_, (offset + bytes) / bytes_}, to); });
  }
  void end_reading() noexcept override {
    HeldData::end_reading();
    reader_.reset();  // also frees its buffer
  }

 private:
  int64_t bytes_;
  std::unique_ptr<ArrayReader> reader_;
};

class HeldParameters final : public HeldData {
 public:
  explicit HeldParameters(const ShardedGroup& group)
      : HeldData(*group.states().hold()), data_(group.updated_memory()) {}
  void read(int64_t offset, int64_t bytes, void* to) const override { data_.read(offset, bytes, to); }

 private:
  TensorData data_;
};

class StreamCopies final : public DeviceCopies {
 public:
  explicit StreamCopies(c10::Device device) : mover_(device) {}
  std::shared_ptr<std::byte> host_memory(int64_t bytes) override { return pinned_memory(bytes, mover_.device()); }
  void in_order(const std::function<void()>& begin, Order order) override {
    mover_.follow();
    try {
      const SideStream::Scope scope(mover_.stream());
      begin();
    } catch (...) {
      mover_.stream().join();
      throw;
    }
    if (order == Order::kBeforeLater) mover_.stream().join();
  }
  Wait mark() override {
    return [event = std::make_shared<c10::Event>(mover_.record())] { event->synchronize(); };
  }

 private:
  Mover mover_;
};

}  // namespace

std::unique_ptr<DeviceCopies> device_copies(c10::Device device) {
  return device.is_cpu() ? nullptr : std::make_unique<StreamCopies>(device);
}

std::shared_ptr<SliceData> tensor_data(const at::Tensor& tensor) {
  return std::make_shared<TensorData>(tensor);
}

std::shared_ptr<SliceData> parameter_data(const ShardedGroup& group) {
  const int64_t bytes = element_size(group.flat().dtype);
  if (!group.parameters().in_memory())
    return std::make_shared<ArrayData>(group, group.parameters(), 0, bytes, /*writers_wait=*/false);
  return tensor_data(group.is_trained() ? group.updated_parameters() : group.kept_parameters());
}

std::shared_ptr<SliceData> state_data(const ShardedGroup& group, int state, bool writers_wait) {
  return std::make_shared<ArrayData>(group, group.states(), state, kSavedBytes, writers_wait);
}

std::shared_ptr<SliceData> held_data(const ShardedGroup& group, int state) {
  return std::make_shared<HeldArray>(group.states(), state, kSavedBytes);
}

std::shared_ptr<SliceData> held_parameter_data(const ShardedGroup& group) {
  if (group.parameters().hold())
    return std::make_shared<HeldArray>(group.parameters(), 0, element_size(group.flat().dtype));
  return std::make_shared<HeldParameters>(group);
}

}  // namespace zeroshard
