#pragma once
#include <c10/core/Device.h>

#include <span>
#include <string>

#include "layout/unit_layout.h"
#include "placement/placement.h"
#include "zeroshard/config.h"

namespace zeroshard {

// Throws ConfigError if the configuration's offload is not supported on this device, or with this external optimizer:
// see placement/offload_rules.h. `external_optimizer` is "" if there is none.
void check_offload(const Config& config, c10::Device device, const std::string& external_optimizer);
// Logs how many elements of sharded parameters (on all ranks together) stay on the device although offload_param is
// configured. The message is a warning if no sharded parameter leaves the device. Logs nothing if all of them leave it.
void tell_offload_param(const Config& config, std::span<const UnitLayout> units,
                        std::span<const UnitPlacement> placements);

}  // namespace zeroshard
