#include "device/pinning.h"

namespace zeroshard {

std::string pin_for_cuda(void*, int64_t) {
  return "this build has no CUDA";
}

void unpin_for_cuda(void*) noexcept {}

}  // namespace zeroshard
