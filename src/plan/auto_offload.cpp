#include "plan/auto_offload.h"

#include <algorithm>
#include <string_view>

#include "base/check.h"
#include "base/format.h"
#include "placement/offload_rules.h"

namespace zeroshard {
namespace {

using Device = OffloadDevice;

std::vector<Device> places_of_states(const Config& config, bool on_device, bool may_use_files) {
  if (config.offload_optimizer.device != Device::kAuto) return {config.offload_optimizer.device};
  std::vector<Device> places{Device::kNone};
  if (on_device) places.push_back(Device::kCpu);
  if (may_use_files && !config.offload_optimizer.nvme_path.empty()) places.push_back(Device::kNvme);
  return places;
}

// Returns the places to try for parameters if the states are at `states`. If the places of parameters and of optimizer
// states are both "auto", parameters are on the host only if the states have left the device, and in files only if the
// states are in files. The reason is that parameters are moved in each micro-batch, and states only once in a step.
// offload_choices() adds the one exception.
std::vector<Device> places_of_parameters(const Config& config, Device states, bool on_device, bool may_use_files) {
  if (config.offload_param.device != Device::kAuto) return {config.offload_param.device};
  const bool are_states_given = config.offload_optimizer.device != Device::kAuto;
  std::vector<Device> places{Device::kNone};
  if (on_device && (are_states_given || states != Device::kNone)) places.push_back(Device::kCpu);
  const bool to_files = may_use_files && !config.offload_param.nvme_path.empty();
  if (to_files && (are_states_given || states == Device::kNvme)) places.push_back(Device::kNvme);
  return places;
}

}  // namespace

bool has_auto_offload(const Config& config) {
  return config.offload_optimizer.device == Device::kAuto || config.offload_param.device == Device::kAuto;
}

std::vector<Config> offload_choices(const Config& config, bool on_device, bool may_use_files) {
  std::vector<Config> choices, refused;
  const auto add = [&](Device states, Device parameters) {
    Config choice = config;
    choice.offload_optimizer.device = states;
    choice.offload_param.device = parameters;
    (refused_offload(choice, on_device).empty() ? choices : refused).push_back(std::move(choice));
  };
  const bool are_both_auto =
      config.offload_optimizer.device == Device::kAuto && config.offload_param.device == Device::kAuto;
  for (const Device states : places_of_states(config, on_device, may_use_files)) {
    for (const Device parameters : places_of_parameters(config, states, on_device, may_use_files)) {
      // This is the exception of places_of_parameters(). Parameters are offloaded alone before they are offloaded with
      // the states, because the host might have no room for the states.
      if (are_both_auto && states == Device::kCpu && parameters == Device::kCpu) add(Device::kNone, Device::kCpu);
      add(states, parameters);
    }
  }
  return choices.empty() ? refused : choices;
}

OffloadChoice choose_offload(const std::vector<Config>& choices, const MemoryLimits& limits,
                             const std::function<MemoryNeeds(const Config&)>& needs, bool on_device) {
  ZS_CHECK(!choices.empty(), "no choice of offload");
  if (!limits.device && !limits.host) return {0, "", OffloadChoice::Fit::kUnknown};
  std::string before;
  std::vector<double> of_host;
  for (size_t index = 0; index < choices.size(); ++index) {
    const MemoryNeeds needed = needs(choices[index]);
    of_host.push_back(needed.host);
    std::string passed = passed_limits(needed, limits, on_device);
    if (passed.empty()) return {index, before, OffloadChoice::Fit::kYes};
    before = std::move(passed);
  }
  // No choice fits, so an engine will refuse the returned choice and say what would help. The returned choice should be
  // the one that lacks the least memory. With a device, that is the last choice, which offloads the most.
  const auto least = size_t(std::min_element(of_host.begin(), of_host.end()) - of_host.begin());
  return {on_device ? choices.size() - 1 : least, "", OffloadChoice::Fit::kNo};
}

std::string describe_choice(const Config& asked, const Config& chosen, const OffloadChoice& choice) {
  std::string text;
  const auto tell = [&](std::string_view key, std::string_view value) {
    text += concat(text.empty() ? "" : ", ", "zero_optimization.", key, " = \"auto\" becomes \"", value, "\"");
  };
  if (asked.offload_optimizer.device == Device::kAuto)
    tell("offload_optimizer.device", name_of(chosen.offload_optimizer.device));
  if (asked.offload_param.device == Device::kAuto) tell("offload_param.device", name_of(chosen.offload_param.device));
  switch (choice.fits) {
    case OffloadChoice::Fit::kUnknown:
      return text + ": no limit of memory is known";
    case OffloadChoice::Fit::kNo:
      return text + ": nothing that it may become fits";
    case OffloadChoice::Fit::kYes:
      break;
  }
  return text + (choice.why_not_before.empty() ? ": that fits" : concat(": without, ", choice.why_not_before));
}

}  // namespace zeroshard
