#include <ATen/DeviceAccelerator.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>

#include "base/check.h"
#include "zeroshard/error.h"
#include "zeroshard/world.h"

namespace zeroshard {
namespace {

std::string capitals(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return std::toupper(c); });
  return text;
}

std::string kind_of(c10::Device device) {
  return c10::DeviceTypeName(device.type(), /*lower_case=*/true);
}

int count_of(c10::DeviceType type) {
  return c10::impl::hasDeviceGuardImpl(type) ? c10::impl::VirtualGuardImpl(type).deviceCount() : 0;
}

// Returns the value of CUDA_VISIBLE_DEVICES, which hides GPUs, as a part of a message. Returns "" if it is not set.
std::string shown_devices() {
  const char* const visible = std::getenv("CUDA_VISIBLE_DEVICES");
  return visible != nullptr ? concat(" (CUDA_VISIBLE_DEVICES='", visible, "')") : "";
}

// Resolves the device name that was passed to choose_device(). The errors say where the name was given.
class Choice {
 public:
  Choice(const std::string& name, const std::string& place, const RankEnvironment& ranks)
      : name_(name), place_(place), ranks_(ranks) {}

  c10::Device device() const {
    if (name_ != "auto") return of(parsed());
    const auto accelerator = at::accelerator::getAccelerator(/*checked=*/false);
    return accelerator && count_of(*accelerator) > 0 ? of(*accelerator) : c10::Device(c10::kCPU);
  }

 private:
  [[noreturn]] void refuse(const std::string& why) const {
    throw ConfigError(concat(place_, " is \"", name_, "\": ", why));
  }

  c10::Device parsed() const {
    std::optional<c10::Device> device;
    try {
      device.emplace(name_);
    } catch (const c10::Error&) {  // not the name of a device
    }
    if (!device || (!device->is_cpu() && !at::accelerator::isAccelerator(device->type())))
      refuse("it must be auto, cpu, cuda, or cuda:N with the number of one GPU");
    return device->is_cpu() ? c10::Device(c10::kCPU) : *device;
  }

  c10::Device of(c10::Device device) const {
    if (device.is_cpu()) return device;
    const std::string kind = kind_of(device);
    if (!c10::impl::hasDeviceGuardImpl(device.type()))
      refuse(concat("this build has no ", capitals(kind),
                    ", because its LibTorch has none. Build zeroshard with one "
                    "that has, or say cpu"));
    const int count = count_of(device.type());
    if (count == 0) refuse(concat("this host shows no such device", shown_devices(), ". Say cpu to do without"));
    return device.has_index() ? single(device, count) : own(device.type(), count);
  }

  c10::Device single(c10::Device device, int count) const {
    if (device.index() >= count)
      refuse(concat("this host shows ", count, shown_devices(), ", numbered from 0. Name one of them, or say ",
                    kind_of(device)));
    if (ranks_.local_world_size > 1 || ranks_.local_rank > 0)
      refuse(concat("all ranks of this host would share it. Say ", kind_of(device), ": each rank then has its own"));
    return device;
  }

  c10::Device own(c10::DeviceType type, int count) const {
    const int needed = std::max(ranks_.local_rank + 1, ranks_.local_world_size);
    if (needed > count)
      refuse(concat(needed, " ranks on this host need a device each, and it shows ", count, shown_devices(),
                    ". Start at most ", count, " rank(s) on it, or say cpu"));
    return {type, static_cast<c10::DeviceIndex>(ranks_.local_rank)};
  }

  const std::string &name_, &place_;
  const RankEnvironment& ranks_;
};

}  // namespace

c10::Device choose_device(const std::string& name, const std::string& place, const RankEnvironment& ranks) {
  return Choice(name, place, ranks).device();
}

}  // namespace zeroshard
