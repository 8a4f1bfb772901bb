#include "engine/check_offload.h"

#include "base/format.h"
#include "zeroshard/error.h"

namespace zeroshard {

void check_offload(const Config& config, c10::Device device) {
  if (device.is_cpu() || !(config.offload_params || config.offload_optimizer)) return;
  throw ConfigError(concat("zero_optimization.", config.offload_params ? "offload_param" : "offload_optimizer",
                           ".device = \"cpu\": offload is not supported yet, and the ranks run on ", device.str(),
                           ", not on the CPU: set \"none\". `zeroshard plan` says which stage and how many ranks fit "
                           "into the device's memory"));
}

}  // namespace zeroshard
