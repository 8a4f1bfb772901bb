#pragma once
#include <c10/core/Device.h>

#include <span>
#include <string>

#include "layout/unit_layout.h"
#include "placement/placement.h"
#include "zeroshard/config.h"

namespace zeroshard {

// Configuration and device meet in the engine. Throws ConfigError where the one asks for offload that there is not yet
// for ranks on the other, as a part of a unit's states on a GPU: a run that was planned with it would not fit.
// An optimizer of the caller's, named `external_optimizer`, needs its states in memory; "": there is none.
void check_offload(const Config& config, c10::Device device, const std::string& external_optimizer);
// Logs how many parameters stay on a device that they were to leave.
void tell_offload_param(const Config& config, std::span<const UnitLayout> units,
                        std::span<const UnitPlacement> placements);

}  // namespace zeroshard
