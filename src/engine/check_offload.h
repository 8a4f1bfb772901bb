#pragma once
#include <c10/core/Device.h>

#include <span>
#include <string>

#include "layout/unit_layout.h"
#include "zeroshard/config.h"

namespace zeroshard {

// Configuration and device meet in the engine. Throws ConfigError where the one asks for offload that there is not yet
// for ranks on the other, as a part of a unit's states on a GPU: a run that was planned with it would not fit.
// An optimizer of the caller's, named `external_optimizer`, needs its states in memory; "": there is none.
void check_offload(const Config& config, c10::Device device, const std::string& external_optimizer);
// Trained parameters do not leave the device without their states. Throws ConfigError if nothing is left that does;
// otherwise rank 0 tells what stays.
void check_offload_param(const Config& config, c10::Device device, std::span<const UnitLayout> units, int rank);

}  // namespace zeroshard
