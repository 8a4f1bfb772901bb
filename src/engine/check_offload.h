#pragma once
#include <c10/core/Device.h>

#include <span>
#include <string>

#include "layout/unit_layout.h"
#include "placement/placement.h"
#include "zeroshard/config.h"

namespace zeroshard {

// Throws ConfigError if ranks on this device do not support the configuration's offload (placement/offload_rules.h).
void check_offload(const Config& config, c10::Device device, const std::string& external_optimizer);
// Logs how many parameters stay on the device although offload_param is configured.
void tell_offload_param(const Config& config, std::span<const UnitLayout> units,
                        std::span<const UnitPlacement> placements);

}  // namespace zeroshard
