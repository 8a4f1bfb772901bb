#pragma once
#include <c10/core/Device.h>

#include "zeroshard/config.h"

namespace zeroshard {

// Configuration and device meet in the engine. Throws ConfigError where the one asks for offload that there is not yet
// for ranks on the other: a run that was planned with it would not fit.
void check_offload(const Config& config, c10::Device device);

}  // namespace zeroshard
