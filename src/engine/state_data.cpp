#include "engine/state_data.h"

#include "device/flat_buffer.h"
#include "device/host_copy.h"

namespace zeroshard {
namespace {

class TensorData final : public SliceData {
 public:
  explicit TensorData(at::Tensor tensor) : tensor_(std::move(tensor)) {}
  void read(int64_t offset, int64_t bytes, void* to) const override {
    copy_to_host(to, address() + offset, bytes, tensor_.device());
  }
  void write(int64_t offset, int64_t bytes, const void* from) override {
    view_memory(address() + offset, bytes, at::kByte, tensor_.device())
        .copy_(view_memory(const_cast<void*>(from), bytes, at::kByte, at::kCPU));
  }
  std::byte* on_host() const override { return tensor_.is_cpu() ? address() : nullptr; }

 private:
  std::byte* address() const { return static_cast<std::byte*>(tensor_.data_ptr()); }

  at::Tensor tensor_;
};

class StateData final : public SliceData {
 public:
  StateData(const ShardedGroup& group, int slot) : group_(group), slot_(slot) {}
  void read(int64_t offset, int64_t bytes, void* to) const override {
    lend(offset, bytes, OptimizerStates::Access::kRead,
         [&](int64_t at, TensorData&& state, int64_t size) { state.read(0, size, static_cast<std::byte*>(to) + at); });
  }
  void write(int64_t offset, int64_t bytes, const void* from) override {
    lend(offset, bytes, OptimizerStates::Access::kModify, [&](int64_t at, TensorData&& state, int64_t size) {
      state.write(0, size, static_cast<const std::byte*>(from) + at);
    });
  }
  std::byte* on_host() const override {
    const StateTensors* const all = group_.states().in_memory();
    return all != nullptr ? TensorData(chosen(*all)).on_host() : nullptr;
  }

 private:
  static constexpr int64_t kBytes = sizeof(float);  // of an element

  const at::Tensor& chosen(const StateTensors& states) const {
    return slot_ == kMasterWeights ? states.master : states.moments.at(size_t(slot_));
  }
  // Calls use(bytes before, state, bytes) for parts of the state that make up the bytes.
  template <typename Use>
  void lend(int64_t offset, int64_t bytes, OptimizerStates::Access access, Use use) const {
    const Range range{offset / kBytes, (offset + bytes) / kBytes};
    group_.states().lend(range, access, [&](Range part, const StateTensors& lent) {
      use((part.begin - range.begin) * kBytes, TensorData(chosen(lent)), part.size() * kBytes);
    });
  }

  const ShardedGroup& group_;
  int slot_;
};

}  // namespace

std::shared_ptr<SliceData> tensor_data(const at::Tensor& tensor) {
  return std::make_shared<TensorData>(tensor);
}

std::shared_ptr<SliceData> state_data(const ShardedGroup& group, int slot_or_master) {
  return std::make_shared<StateData>(group, slot_or_master);
}

}  // namespace zeroshard
