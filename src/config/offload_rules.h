#pragma once
#include <string>

#include "zeroshard/config.h"

// Says which offload a run may have. Engine, planner, dry run and explanations all ask this function.
namespace zeroshard {

// Returns why ranks on a GPU or another accelerator (`on_device`), or on the CPU, refuse the offload of `config`; "" if
// they accept it. An external optimizer, named `external_optimizer` ("" if there is none), needs its states in memory.
// "auto" is refused if every possible resolution of it is refused.
std::string refused_offload(const Config& config, bool on_device, const std::string& external_optimizer = "");

}  // namespace zeroshard
