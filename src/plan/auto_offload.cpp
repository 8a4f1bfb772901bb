#include "plan/auto_offload.h"

#include <string_view>

#include "base/check.h"
#include "base/format.h"

namespace zeroshard {
namespace {

using Device = OffloadOptimizerConfig::Device;

std::string_view name_of(Device device) {
  switch (device) {
    case Device::kNone:
      return "none";
    case Device::kCpu:
      return "cpu";
    case Device::kNvme:
      return "nvme";
    case Device::kAuto:
      return "auto";
  }
  return "?";
}

Config with(const Config& config, Device states) {
  Config changed = config;
  changed.offload_optimizer.device = states;
  return changed;
}

}  // namespace

bool has_auto_offload(const Config& config) {
  return config.offload_optimizer.device == Device::kAuto;
}

std::vector<Config> offload_choices(const Config& config, bool on_device, bool may_use_files) {
  if (!has_auto_offload(config)) return {config};
  std::vector<Config> choices{with(config, Device::kNone)};
  if (on_device) choices.push_back(with(config, Device::kCpu));
  if (may_use_files && !config.offload_optimizer.nvme_path.empty()) choices.push_back(with(config, Device::kNvme));
  return choices;
}

OffloadChoice choose_offload(const std::vector<Config>& choices, const MemoryLimits& limits,
                             const std::function<MemoryNeeds(const Config&)>& needs, bool on_device) {
  ZS_CHECK(!choices.empty(), "no choice of offload");
  OffloadChoice choice;
  for (; choice.index + 1 < choices.size(); ++choice.index) {
    std::string passed = passed_limits(needs(choices[choice.index]), limits, on_device);
    if (passed.empty()) break;
    choice.why_not_before = std::move(passed);
  }
  return choice;
}

std::string describe_choice(const Config& asked, const Config& chosen, const std::string& why_not_before) {
  std::string text;
  const auto tell = [&](std::string_view key, std::string_view value) {
    text += concat(text.empty() ? "" : ", ", "zero_optimization.", key, " = \"auto\" becomes \"", value, "\"");
  };
  if (asked.offload_optimizer.device == Device::kAuto)
    tell("offload_optimizer.device", name_of(chosen.offload_optimizer.device));
  return text + (why_not_before.empty() ? ": that fits" : concat(": without, ", why_not_before));
}

}  // namespace zeroshard
