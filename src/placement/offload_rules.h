#pragma once
#include <string>

#include "zeroshard/config.h"

// Says which offload a run may have. The engine, the planner, the dry run and the explanations all ask this function.
namespace zeroshard {

// Returns why ranks refuse the offload of `config`, or "" if they accept it. The ranks are on a GPU or another
// accelerator if `on_device` is true, and on the CPU otherwise. An external optimizer, named `external_optimizer` (""
// if there is none), needs its states in memory. "auto" is refused if every possible resolution of it is refused.
std::string refused_offload(const Config& config, bool on_device, const std::string& external_optimizer = "");

}  // namespace zeroshard
