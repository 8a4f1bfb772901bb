#include "device/host_copy.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/from_blob.h>

#include "comm/copy.h"
#include "device/named_range.h"
#include "device/parallel_for.h"

namespace zeroshard {
namespace {

void copy(void* to, c10::Device to_device, const void* from, c10::Device from_device, int64_t bytes, bool waits) {
  const NamedRange named(to_device.is_cpu() ? "copy to the host" : "copy to the device");
  const auto view = [bytes](const void* memory, c10::Device device) {
    return at::from_blob(const_cast<void*>(memory), {bytes}, at::TensorOptions().dtype(at::kByte).device(device));
  };
  view(to, to_device).copy_(view(from, from_device), /*non_blocking=*/!waits);
}

}  // namespace

void copy_to_host(void* to, const void* from, int64_t bytes, c10::Device device) {
  constexpr int64_t kGrain = int64_t{4} << 20;
  if (device.is_cpu()) {
    parallel_for(0, bytes, kGrain, [&](int64_t begin, int64_t end) {
      copy_bytes(static_cast<char*>(to) + begin, static_cast<const char*>(from) + begin, end - begin);
    });
    return;
  }
  copy(to, at::kCPU, from, device, bytes, /*waits=*/true);
}

void copy_from_host(void* to, const void* from, int64_t bytes, c10::Device device) {
  copy(to, device, from, at::kCPU, bytes, /*waits=*/true);
}

void begin_copy_to_host(void* to, const void* from, int64_t bytes, c10::Device device) {
  if (device.is_cpu()) return copy_to_host(to, from, bytes, device);
  copy(to, at::kCPU, from, device, bytes, /*waits=*/false);
}

void begin_copy_from_host(void* to, const void* from, int64_t bytes, c10::Device device) {
  copy(to, device, from, at::kCPU, bytes, /*waits=*/false);
}

}  // namespace zeroshard
