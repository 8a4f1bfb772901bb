#include "engine/check_offload.h"

#include <string>
#include <string_view>

#include "base/format.h"
#include "base/log.h"
#include "placement/offload_rules.h"
#include "zeroshard/error.h"

namespace zeroshard {

void check_offload(const Config& config, c10::Device device, const std::string& external_optimizer) {
  if (const std::string problem = refused_offload(config, !device.is_cpu(), external_optimizer); !problem.empty())
    throw ConfigError(problem);
}

void tell_offload_param(const Config& config, std::span<const UnitLayout> units,
                        std::span<const UnitPlacement> placements) {
  int64_t stay = 0, leave = 0;
  for (size_t u = 0; u < units.size(); ++u) {
    // Units that are not sharded, because they are small or a rule says so, stay on the device anyway.
    if (placements[u].parameters != Placement::kSharded) continue;
    for (size_t g = 0; g < units[u].groups.size(); ++g) {
      const bool stays = placements[u].groups[g].parameters.tier == Tier::kDevice;
      (stays ? stay : leave) += units[u].groups[g].layout.numel();
    }
  }
  if (stay == 0) return;
  const bool all_leave = config.offload_optimizer.ratio == 1;
  const std::string_view missing = config.offload_optimizer.device == OffloadDevice::kNone
                                       ? (all_leave ? "device, too" : "device, too, and ratio to 1")
                                       : "ratio to 1";
  log(leave > 0 ? LogLevel::kInfo : LogLevel::kWarning,
      concat("zero_optimization.offload_param.device = \"", name_of(config.offload_param.device), "\": ", stay,
             " elements of fp32 parameters stay on the device, where they are the master weights of their optimizer ",
             "states. They leave it with all of these: set zero_optimization.offload_optimizer.", missing));
}

}  // namespace zeroshard
