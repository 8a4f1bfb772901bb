#pragma once
#include <string>

#include "zeroshard/config.h"

namespace zeroshard {

// Returns why ranks refuse the offload of `config`, or "" if they accept it. The ranks are on a GPU or another
// accelerator if `on_device` is true, and on the CPU otherwise. `external_optimizer` is the name of the caller's own
// optimizer, or "" if there is none. "auto" is refused only if every place to which it can be resolved is refused. The
// text is then about the place that offloads the least. The engine, the planner, the dry run and `zeroshard config
// explain` all call this function, so that they refuse the same offloads.
std::string refused_offload(const Config& config, bool on_device, const std::string& external_optimizer = "");

}  // namespace zeroshard
