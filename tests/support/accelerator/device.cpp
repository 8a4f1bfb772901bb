#include "support/accelerator/device.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/Storage.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <mutex>
#include <vector>

#include "support/accelerator/memory.h"
#include "support/accelerator/operators.h"

namespace zeroshard::accelerator {
namespace {

struct Event {
  Mark mark;
};

Event& event_of(void* event) {
  TORCH_CHECK(event != nullptr, "the event was not recorded");
  return *static_cast<Event*>(event);
}

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return c10::DeviceType::PrivateUse1; }
  c10::Device exchangeDevice(c10::Device to) const override {
    const c10::Device before = getDevice();
    setDevice(to);
    return before;
  }
  c10::Device getDevice() const override { return device(current_device()); }
  void setDevice(c10::Device to) const override {
    if (to.has_index()) set_current_device(to.index());
  }
  void uncheckedSetDevice(c10::Device to) const noexcept override {
    if (to.has_index()) set_current_device(to.index());
  }
  c10::Stream getStream(c10::Device of) const override {
    return to_stream(current_stream(of.has_index() ? of.index() : current_device()));
  }
  c10::Stream getDefaultStream(c10::Device of) const override { return to_stream({of.index(), 0}); }
  c10::Stream getStreamFromGlobalPool(c10::Device of, bool) const override { return getNewStream(of); }
  c10::Stream getNewStream(c10::Device of, int = 0) const override {
    return to_stream(Streams::get().make_stream(of.has_index() ? of.index() : current_device()));
  }
  c10::Stream exchangeStream(c10::Stream to) const override {
    const c10::Stream before = getStream(to.device());
    set_current_stream(to_key(to));
    return before;
  }
  void destroyEvent(void* event, c10::DeviceIndex) const noexcept override { delete static_cast<Event*>(event); }
  void record(void** event, const c10::Stream& stream, c10::DeviceIndex, c10::EventFlag) const override {
    if (*event == nullptr) *event = new Event();
    event_of(*event).mark = Streams::get().record(to_key(stream));
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (event != nullptr) Streams::get().wait_on_stream(to_key(stream), event_of(event).mark);
  }
  bool queryEvent(void* event) const override {
    return event == nullptr || Streams::get().is_done(event_of(event).mark);
  }
  void synchronizeEvent(void* event) const override {
    if (event != nullptr) Streams::get().wait_on_host(event_of(event).mark);
  }
  c10::DeviceIndex deviceCount() const noexcept override { return kDevices; }
  bool queryStream(const c10::Stream& stream) const override {
    return Streams::get().is_done(Streams::get().record(to_key(stream)));
  }
  void synchronizeStream(const c10::Stream& stream) const override { Streams::get().wait_on_host(to_key(stream)); }
  void synchronizeDevice(c10::DeviceIndex index) const override { Streams::get().wait_for_device(index); }
  void recordDataPtrOnStream(const c10::DataPtr& memory, const c10::Stream& stream) const override {
    use_on_stream(memory, stream);
  }
};

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return kDevices; }
  void setCurrentDevice(c10::DeviceIndex index) const override { set_current_device(index); }
  c10::DeviceIndex getCurrentDevice() const override { return static_cast<c10::DeviceIndex>(current_device()); }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex to) const override {
    const c10::DeviceIndex before = getCurrentDevice();
    set_current_device(to);
    return before;
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex to) const override {
    return to < 0 ? getCurrentDevice() : exchangeDevice(to);
  }
  bool isPinnedPtr(const void* data) const override { return is_pinned(data); }
  c10::Allocator* getPinnedMemoryAllocator() const override { return &pinned_allocator(); }
  // Nothing draws from it: random operators run with the CPU's.
  const at::Generator& getDefaultGenerator(c10::DeviceIndex index) const override {
    static auto& all = *new std::vector<at::Generator>(kDevices, at::Generator());
    static std::mutex mutex;
    const std::scoped_lock lock(mutex);
    at::Generator& own = all.at(static_cast<size_t>(index < 0 ? current_device() : index));
    if (!own.defined()) own = at::detail::createCPUGenerator();
    return own;
  }
  at::Device getDeviceFromPtr(void* data) const override {
    const int index = device_of(data);
    TORCH_CHECK(index >= 0, "the address ", data, " is not one of a device");
    return device(index);
  }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    resize_storage(storage, bytes);
  }
};

}  // namespace

void start() {
  static const bool started = [] {
    c10::register_privateuse1_backend("simulated");
    static const Guard guard;
    c10::impl::device_guard_impl_registry[static_cast<size_t>(c10::DeviceType::PrivateUse1)].store(&guard);
    c10::SetAllocator(c10::DeviceType::PrivateUse1, &device_allocator());
    at::RegisterPrivateUse1HooksInterface(new Hooks());
    register_operators();
    return true;
  }();
  (void)started;
}

c10::Device device(int index) {
  return {c10::DeviceType::PrivateUse1, static_cast<c10::DeviceIndex>(index)};
}

c10::Stream to_stream(StreamKey stream) {
  return c10::Stream(c10::Stream::UNSAFE, device(stream.device), stream.id);
}

StreamKey to_key(c10::Stream stream) {
  return {stream.device_index(), stream.id()};
}

}  // namespace zeroshard::accelerator
