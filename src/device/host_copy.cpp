#include "device/host_copy.h"

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/from_blob.h>

#include "comm/copy.h"

namespace zeroshard {

void copy_to_host(void* to, const void* from, int64_t bytes, c10::Device device) {
  constexpr int64_t kGrain = int64_t{4} << 20;
  if (device.is_cpu()) {
    at::parallel_for(0, bytes, kGrain, [&](int64_t begin, int64_t end) {
      copy_bytes(static_cast<char*>(to) + begin, static_cast<const char*>(from) + begin, end - begin);
    });
    return;
  }
  const auto options = at::TensorOptions().dtype(at::kByte);
  at::from_blob(to, {bytes}, options).copy_(at::from_blob(const_cast<void*>(from), {bytes}, options.device(device)));
}

}  // namespace zeroshard
