#pragma once
#include <c10/core/Device.h>

#include "zeroshard/config.h"

namespace zeroshard {

// Configuration and device meet in the engine. Throws ConfigError where one asks for host memory and the other is not
// the CPU: there is no offload yet, and a run that was planned with it would not fit.
void check_offload(const Config& config, c10::Device device);

}  // namespace zeroshard
