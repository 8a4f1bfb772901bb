#pragma once
#include <string>

#include "zeroshard/config.h"

// Which offload a run can have: the one place that engine, planner, dry run and explanations ask.
namespace zeroshard {

// Why ranks on a GPU or the like (`on_device`), or on the CPU, refuse the offload of `config`; "" where they take it.
// An optimizer of the caller's, named `external_optimizer`, needs its states in memory; "": there is none. "auto" is
// refused where all that it may become is.
std::string refused_offload(const Config& config, bool on_device, const std::string& external_optimizer = "");

}  // namespace zeroshard
