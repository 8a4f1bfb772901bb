#include "engine/state_data.h"

#include "base/check.h"
#include "device/flat_buffer.h"
#include "device/host_copy.h"
#include "device/mover.h"
#include "device/pinned_memory.h"
#include "optim/written.h"
#include "zeroshard/error.h"

namespace zeroshard {
namespace {

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

// An error of a swap file must not look like one of the checkpoint's files to a save or a load.
template <typename Call>
void told_as_state(const Call& call) {
  try {
    call();
  } catch (const IoError& error) {
    throw StateError(error.what());
  }
}

// All elements of a state. Narrow ones lie on the host, and are fp32 elsewhere.
void read_values(const at::Tensor& values, void* to) {
  if (values.scalar_type() == at::kFloat) return TensorData(values).read(0, int64_t(values.nbytes()), to);
  view_memory(to, values.numel(), at::kFloat, at::kCPU).copy_(values);
}

// To nearest where they are narrow: those that were read there come back as they were.
void write_values(const at::Tensor& values, const void* from) {
  if (values.scalar_type() == at::kFloat) return TensorData(values).write(0, int64_t(values.nbytes()), from);
  values.copy_(view_memory(const_cast<void*>(from), values.numel(), at::kFloat, at::kCPU));
}

class StateData final : public SliceData {
 public:
  StateData(const ShardedGroup& group, int state, bool is_engines)
      : group_(group), state_(state), is_engines_(is_engines) {}
  void read(int64_t offset, int64_t bytes, void* to) const override {
    lend(offset, bytes, Array::Access::kRead,
         [&](int64_t at, const at::Tensor& state) { read_values(state, static_cast<std::byte*>(to) + at); });
    if (state_ == kMasterWeights && group_.is_open() && group_.states().in_memory() == nullptr)
      take_params(offset, bytes, view_memory(to, bytes / kBytes, at::kFloat, at::kCPU));
  }
  void write(int64_t offset, int64_t bytes, const void* from) override {
    lend(offset, bytes, Array::Access::kOverwrite,
         [&](int64_t at, const at::Tensor& state) { write_values(state, static_cast<const std::byte*>(from) + at); });
  }
  void begin_read(int64_t offset, int64_t bytes, void* to) const override {
    if (is_narrow()) return read(offset, bytes, to);
    lend(offset, bytes, Array::Access::kRead, [&](int64_t at, const at::Tensor& state) {
      TensorData(state).begin_read(0, int64_t(state.nbytes()), static_cast<std::byte*>(to) + at);
    });
  }
  void begin_write(int64_t offset, int64_t bytes, const void* from) override {
    if (is_narrow()) return write(offset, bytes, from);
    lend(offset, bytes, Array::Access::kOverwrite, [&](int64_t at, const at::Tensor& state) {
      TensorData(state).begin_write(0, int64_t(state.nbytes()), static_cast<const std::byte*>(from) + at);
    });
  }
  bool writers_wait() const override { return is_engines_; }
  std::byte* on_host() const override {
    const StateTensors* const all = group_.states().in_memory();
    return all != nullptr && !is_narrow() ? TensorData(all->at(state_)).on_host() : nullptr;
  }

 private:
  static constexpr int64_t kBytes = sizeof(float);  // of an element

  bool is_narrow() const { return state_ != kMasterWeights && group_.place().moments.dtype != DType::kFloat32; }
  static Range range_of(int64_t offset, int64_t bytes) { return {offset / kBytes, (offset + bytes) / kBytes}; }
  // What users have written to parameters counts from here on: in `copy` of the master weights, and in these.
  void take_params(int64_t offset, int64_t bytes, at::Tensor copy) const {
    const Range range = range_of(offset, bytes);
    const at::Tensor params = group_.updated_parameters().slice(0, range.begin, range.end).cpu();
    // fp32 parameters of a device are copied to their master weights with each update.
    if (params.scalar_type() == at::kFloat) return void(copy.copy_(params));
    if (!is_written(copy, params)) return;
    take_written(copy, params);
    group_.forget_parameters();
    const auto* const from = static_cast<const std::byte*>(copy.data_ptr());
    lend(offset, bytes, Array::Access::kOverwrite,
         [&](int64_t at, const at::Tensor& state) { write_values(state, from + at); });
  }
  // Calls use(bytes before, state) for parts of the state that make up the bytes.
  template <typename Use>
  void lend(int64_t offset, int64_t bytes, Array::Access access, Use use) const {
    const Range range = range_of(offset, bytes);
    told_as_state([&] {
      group_.states().lend_one(range, state_, access, [&](Range part, const at::Tensor& values) {
        use((part.begin - range.begin) * kBytes, values);
      });
    });
  }

  const ShardedGroup& group_;
  int state_;
  bool is_engines_;
};

// What is read while training goes on: who writes to it waits until reading has ended.
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
  // `bytes`: of an element, as it is read.
  HeldArray(Array& array, int state, int64_t bytes)
      : HeldData(*array.hold()), bytes_(bytes), reader_(array.reader(state)) {}
  void read(int64_t offset, int64_t bytes, void* to) const override {
    told_as_state([&] { reader_->read({offset / bytes_, (offset + bytes) / bytes_}, to); });
  }
  void end_reading() noexcept override {
    HeldData::end_reading();
    reader_.reset();  // its buffer, too
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

// Parameters in files.
class FileData final : public SliceData {
 public:
  explicit FileData(const ShardedGroup& group) : group_(group) {}
  void read(int64_t offset, int64_t bytes, void* to) const override {
    lend(offset, bytes, Array::Access::kRead, [&](int64_t at, TensorData&& params, int64_t size) {
      params.read(0, size, static_cast<std::byte*>(to) + at);
    });
  }
  void write(int64_t offset, int64_t bytes, const void* from) override {
    lend(offset, bytes, Array::Access::kOverwrite, [&](int64_t at, TensorData&& params, int64_t size) {
      params.write(0, size, static_cast<const std::byte*>(from) + at);
    });
  }

 private:
  template <typename Use>
  void lend(int64_t offset, int64_t bytes, Array::Access access, Use use) const {
    const int64_t element = element_size(group_.flat().dtype);
    const Range range{offset / element, (offset + bytes) / element};
    told_as_state([&] {
      group_.parameters().lend(range, access, [&](Range part, const at::Tensor& params) {
        use((part.begin - range.begin) * element, TensorData(params), part.size() * element);
      });
    });
  }

  const ShardedGroup& group_;
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
  if (!group.parameters().in_memory()) return std::make_shared<FileData>(group);
  return tensor_data(group.is_trained() ? group.updated_parameters() : group.kept_parameters());
}

std::shared_ptr<SliceData> state_data(const ShardedGroup& group, int state, bool is_engines) {
  return std::make_shared<StateData>(group, state, is_engines);
}

std::shared_ptr<SliceData> held_data(const ShardedGroup& group, int state) {
  return std::make_shared<HeldArray>(group.states(), state, int64_t{sizeof(float)});
}

std::shared_ptr<SliceData> held_data(const ShardedGroup& group) {
  if (group.parameters().hold())
    return std::make_shared<HeldArray>(group.parameters(), 0, element_size(group.flat().dtype));
  return std::make_shared<HeldParameters>(group);
}

}  // namespace zeroshard
