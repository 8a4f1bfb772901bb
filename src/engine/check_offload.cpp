#include "engine/check_offload.h"

#include <string>
#include <string_view>

#include "base/format.h"
#include "base/log.h"
#include "zeroshard/error.h"

namespace zeroshard {
namespace {

constexpr std::string_view kRatio = "zero_optimization.offload_optimizer.ratio = ";

// Gradients are in files with the states alone.
void check_gradients_in_files(const Config& config) {
  const OffloadOptimizerConfig& offload = config.offload_optimizer;
  if (config.offload.gradients != OffloadConfig::Gradients::kNvme) return;
  if (offload.device == OffloadDevice::kNvme && offload.ratio > 0) return;
  throw ConfigError(
      concat("zeroshard.offload.gradients = \"nvme\": reduced gradients lie in files beside the optimizer states, and ",
             "zero_optimization.offload_optimizer.",
             offload.device == OffloadDevice::kNvme
                 ? std::string("ratio is 0: set that to 1")
                 : concat("device is \"", name_of(offload.device), "\": set that to \"nvme\", with an nvme_path"),
             ", or zeroshard.offload.gradients to \"auto\""));
}

// Gradients leave a device with the states alone.
void check_gradients(const Config& config) {
  const OffloadOptimizerConfig& offload = config.offload_optimizer;
  if (config.offload.gradients != OffloadConfig::Gradients::kCpu) return;
  if (offload.device != OffloadDevice::kNone && offload.ratio > 0) return;
  const bool is_none = offload.device == OffloadDevice::kNone;
  throw ConfigError(
      concat("zeroshard.offload.gradients = \"cpu\": reduced gradients lie on the host where the optimizer "
             "states do, or with states in files, and zero_optimization.offload_optimizer.",
             is_none ? "device is \"none\": set that to \"cpu\" or \"nvme\"" : "ratio is 0: set that to 1",
             ", or zeroshard.offload.gradients to \"auto\""));
}

// The kernels of the host alone round at random.
void check_moments(const Config& config, c10::Device device, const std::string& external_optimizer) {
  constexpr std::string_view kKey = "zeroshard.offload.moment_dtype = \"bf16\": ";
  const OffloadOptimizerConfig& offload = config.offload_optimizer;
  if (config.offload.moment_dtype == DType::kFloat32) return;
  if (!external_optimizer.empty())
    throw ConfigError(concat(kKey, external_optimizer, " is an optimizer of your own, which keeps its states itself: ",
                             "set \"fp32\", or use one of zeroshard's optimizers"));
  if (device.is_cpu()) return;
  const bool leaves = offload.device == OffloadDevice::kCpu || offload.device == OffloadDevice::kNvme;
  if (leaves && offload.ratio == 1) return;
  const std::string now = leaves ? concat("ratio is ", offload.ratio, ": set that to 1")
                                 : "device is \"none\": set that to \"cpu\" or \"nvme\"";
  throw ConfigError(concat(kKey, "beside a device, the moments of all elements must lie on the host or in files, and ",
                           "zero_optimization.offload_optimizer.", now,
                           ", or zeroshard.offload.moment_dtype to \"fp32\""));
}

// A thread of the host has the states and gradients to itself, and the device whole parameters of its own.
void check_delayed(const Config& config, c10::Device device, const std::string& external_optimizer) {
  if (!config.offload.delayed_update) return;
  using Gradients = OffloadConfig::Gradients;
  constexpr std::string_view kKey = "zeroshard.offload.delayed_update = true: ";
  constexpr std::string_view kOr = ", or delayed_update to false";
  const OffloadOptimizerConfig& offload = config.offload_optimizer;
  if (device.is_cpu())
    throw ConfigError(concat(kKey, "the host updates while a device computes, and the ranks' device is the CPU, which ",
                             "has to do both: set false"));
  if (!external_optimizer.empty())
    throw ConfigError(concat(kKey, external_optimizer, " is an optimizer of your own, which updates at once: set ",
                             "false, or use one of zeroshard's optimizers"));
  if (offload.device == OffloadDevice::kNone)
    throw ConfigError(concat(kKey, "the host updates states that have left the device, and ",
                             "zero_optimization.offload_optimizer.device is \"none\": set that to \"cpu\" or \"nvme\"",
                             kOr));
  if (offload.ratio != 1)
    throw ConfigError(concat(kKey, "all states must have left the device, and zero_optimization.offload_optimizer.",
                             "ratio is ", offload.ratio, ": set that to 1", kOr));
  if (config.offload_param.device != OffloadDevice::kNone)
    throw ConfigError(concat(kKey, "the device computes with parameters of its own, and zero_optimization.",
                             "offload_param.device is \"", name_of(config.offload_param.device),
                             "\": set that to \"none\"", kOr));
  if (config.offload.gradients == Gradients::kDevice || config.offload.gradients == Gradients::kNvme)
    throw ConfigError(concat(kKey, "the host updates with gradients in its memory, and zeroshard.offload.gradients is ",
                             config.offload.gradients == Gradients::kNvme ? "\"nvme\"" : "\"device\"",
                             ": set that to \"auto\"", kOr));
}

// A part of each unit's states leaves a device, which updates the rest with its own gradients.
void check_share(const Config& config, const std::string& external_optimizer) {
  const double ratio = config.offload_optimizer.ratio;
  const OffloadConfig::Gradients gradients = config.offload.gradients;
  if (gradients == OffloadConfig::Gradients::kCpu || gradients == OffloadConfig::Gradients::kNvme)
    throw ConfigError(concat("zeroshard.offload.gradients = \"",
                             gradients == OffloadConfig::Gradients::kCpu ? "cpu" : "nvme",
                             "\": zero_optimization.offload_optimizer.ratio is ", ratio,
                             ", and the device updates the rest of the states with gradients that lie there: set ",
                             "\"auto\" or \"device\", or ratio to 1"));
  if (!external_optimizer.empty())
    throw ConfigError(concat(kRatio, ratio, ": ", external_optimizer, " is an optimizer of your own, which needs the ",
                             "states of a parameter in one place: set 1 or 0, or use one of zeroshard's optimizers"));
}

}  // namespace

void check_offload(const Config& config, c10::Device device, const std::string& external_optimizer) {
  using Device = OffloadDevice;
  const std::string optimizer = "zero_optimization.offload_optimizer.device = ";
  const OffloadOptimizerConfig& offload = config.offload_optimizer;
  if (!(offload.ratio >= 0 && offload.ratio <= 1))
    throw ConfigError(concat(kRatio, offload.ratio, ": must be at least 0 and at most 1"));
  check_delayed(config, device, external_optimizer);
  check_moments(config, device, external_optimizer);
  check_gradients_in_files(config);
  if (!device.is_cpu()) check_gradients(config);
  if (offload.ratio == 0) return;  // nothing leaves
  if (offload.device == Device::kNvme && !external_optimizer.empty())
    throw ConfigError(concat(optimizer, "\"nvme\": ", external_optimizer,
                             " is an optimizer of your own, which needs its states in memory: set \"cpu\", or use ",
                             "one of zeroshard's optimizers"));
  if (!device.is_cpu() && offload.device != Device::kNone && offload.ratio < 1) check_share(config, external_optimizer);
}

void tell_offload_param(const Config& config, std::span<const UnitLayout> units,
                        std::span<const UnitPlacement> placements) {
  int64_t stay = 0, leave = 0;
  for (size_t u = 0; u < units.size(); ++u) {
    if (placements[u].parameters != Placement::kSharded) continue;  // small units stay, and those of a rule
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
