#include "plan/memory_limits.h"

#include <algorithm>
#include <iomanip>
#include <vector>

#include "base/format.h"
#include "plan/smallest_world_size.h"

namespace zeroshard {
namespace {

std::string bytes_text(double bytes) {
  return concat(int64_t(bytes), " bytes (", std::setprecision(3), bytes / 1e9, " GB)");
}

bool fits(const MemoryNeeds& needs, const MemoryLimits& limits) {
  return (!limits.device || needs.device <= limits.device->bytes) && (!limits.host || needs.host <= limits.host->bytes);
}

const char* device_on(Tier tier) {
  return tier == Tier::kFile ? "\"nvme\"" : tier == Tier::kHost ? "\"cpu\"" : "\"none\"";
}

std::string_view value_of(OffloadConfig::Gradients gradients) {
  using Gradients = OffloadConfig::Gradients;
  return gradients == Gradients::kNvme   ? "\"nvme\""
         : gradients == Gradients::kCpu  ? "\"cpu\""
         : gradients == Gradients::kAuto ? "\"auto\""
                                         : "\"device\"";
}

// Returns the keys whose values differ between the two plans, with the values of `to`. Also returns max_in_cpu if only
// `to` has parameters in files.
std::vector<KeyValue> keys_between(const PlanOptions& from, const PlanOptions& to) {
  std::vector<KeyValue> keys;
  const auto add = [&](const char* path, std::string value) { keys.push_back({path, std::move(value)}); };
  if (to.stage != from.stage) add("zero_optimization.stage", concat(to.stage));
  if (to.state_tier != from.state_tier) add("zero_optimization.offload_optimizer.device", device_on(to.state_tier));
  if (to.state_share != from.state_share) add("zero_optimization.offload_optimizer.ratio", concat(to.state_share));
  if (to.parameter_tier != from.parameter_tier)
    add("zero_optimization.offload_param.device", device_on(to.parameter_tier));
  const bool are_new_in_files = to.parameter_tier == Tier::kFile && from.parameter_tier != Tier::kFile;
  if (are_new_in_files || to.parameters_in_memory != from.parameters_in_memory)
    add("zero_optimization.offload_param.max_in_cpu", concat(to.parameters_in_memory));
  if (to.gradients != from.gradients) add("zeroshard.offload.gradients", std::string(value_of(to.gradients)));
  return keys;
}

// Adds changes that put states on `tier`. The first one keeps the configured ratio, and is left out if states are on
// `tier` already. The second one puts all states there, and is left out if the configured ratio is 1.
void add_with_states_on(Tier tier, const PlanOptions& from, std::vector<PlanOptions>& changes) {
  const auto add = [&](double share) {
    changes.push_back(from);
    changes.back().state_tier = tier;
    changes.back().state_share = share;
    changes.back().gradient_tier = tier_of_gradients(changes.back());
  };
  if (from.state_tier != tier) add(from.state_share);
  if (from.state_share < 1) add(1);
}

// Returns changes that offload states or parameters, the fastest first. As in offload_choices(), places on the host
// come before places in files.
std::vector<PlanOptions> offloads_of_state(const FitSearch& search, const PlanOptions& from) {
  std::vector<PlanOptions> changes;
  if (from.stage == 0) return changes;
  const auto add_with_parameters = [&](PlanOptions to, Tier tier) {
    to.parameter_tier = tier;
    if (tier == Tier::kFile) to.parameters_in_memory = 0;
    changes.push_back(std::move(to));
  };
  const bool may_leave = from.stage == 3 && !from.delayed_update && from.parts == 1;
  const bool to_host = may_leave && from.on_device && from.parameter_tier == Tier::kDevice;
  if (from.on_device && from.state_tier != Tier::kFile) {
    add_with_states_on(Tier::kHost, from, changes);
    const PlanOptions all_states = changes.empty() ? from : changes.back();
    if (to_host && !changes.empty()) add_with_parameters(from, Tier::kHost);
    if (to_host) add_with_parameters(all_states, Tier::kHost);
  }
  if (!search.may_use_files) return changes;
  const size_t before = changes.size();
  add_with_states_on(Tier::kFile, from, changes);
  const PlanOptions all_states = changes.size() == before ? from : changes.back();
  if (to_host) add_with_parameters(all_states, Tier::kHost);
  const bool are_in_files = from.parameter_tier == Tier::kFile && from.parameters_in_memory == 0;
  if (may_leave && !are_in_files) add_with_parameters(all_states, Tier::kFile);
  return changes;
}

PlanOptions with_gradients(OffloadConfig::Gradients gradients, PlanOptions options) {
  options.gradients = gradients;
  options.gradient_tier = tier_of_gradients(options);
  return options;
}

// Returns the changes of offloads_of_state(), and, if the configuration keeps gradients on a device, also changes that
// offload gradients. In this case each change is followed by one that offloads gradients in addition. If the states are
// offloaded already, a change that offloads only the gradients comes first.
std::vector<PlanOptions> offloads_of_gradients(const FitSearch& search, const PlanOptions& from) {
  using Gradients = OffloadConfig::Gradients;
  std::vector<PlanOptions> changes = offloads_of_state(search, from);
  const bool may_leave = from.gradients == Gradients::kDevice && from.on_device;
  if (!may_leave || from.stage == 0) return changes;
  std::vector<PlanOptions> all;
  if (from.state_tier != Tier::kDevice) all.push_back(with_gradients(Gradients::kAuto, from));
  for (const PlanOptions& change : changes) {
    all.push_back(change);
    all.push_back(with_gradients(Gradients::kAuto, change));
  }
  return all;
}

// Returns all changes that offload something. Changes that place gradients in files come last, because they are the
// slowest: each micro-batch then writes gradients to files. Such a change needs states in files.
std::vector<PlanOptions> offloads(const FitSearch& search, const PlanOptions& from) {
  std::vector<PlanOptions> changes = offloads_of_gradients(search, from), to_files;
  if (!search.may_use_files || from.stage == 0) return changes;
  const auto add = [&](const PlanOptions& change) {
    if (change.gradient_tier == Tier::kFile) return;
    PlanOptions moved = with_gradients(OffloadConfig::Gradients::kNvme, change);
    if (moved.gradient_tier == Tier::kFile) to_files.push_back(std::move(moved));
  };
  add(from);
  for (const PlanOptions& change : changes) add(change);
  changes.insert(changes.end(), to_files.begin(), to_files.end());
  return changes;
}

// Returns changes of keys: a higher stage, then offload, then both. A single rank has nobody to share with, so for it a
// higher stage alone does not help, and only makes offload possible.
std::vector<PlanOptions> changes_of_keys(const FitSearch& search) {
  std::vector<PlanOptions> changes, more;
  for (int stage = search.options.stage + 1; stage <= 3; ++stage) {
    changes.push_back(search.options);
    changes.back().stage = stage;
    for (PlanOptions& offload : offloads(search, changes.back())) more.push_back(std::move(offload));
  }
  for (PlanOptions& offload : offloads(search, search.options)) changes.push_back(std::move(offload));
  changes.insert(changes.end(), more.begin(), more.end());
  return changes;
}

std::optional<int> ranks_that_fit(const FitSearch& search, PlanOptions options) {
  return smallest_world_size(options.world_size, [&](int ranks) {
    options.world_size = ranks;
    return fits(search.needs(options), search.limits);
  });
}

}  // namespace

std::vector<TierLimit> MemoryLimits::of_tiers(bool on_device) const {
  std::vector<TierLimit> limits;
  if (device) limits.push_back({{Tier::kDevice}, int64_t(device->bytes), device->source});
  if (!host) return limits;
  std::vector<Tier> tiers{Tier::kHost};
  if (!on_device) tiers.push_back(Tier::kDevice);
  limits.push_back({tiers, int64_t(host->bytes), host->source});
  return limits;
}

MemoryNeeds memory_needs(const PlannedBytes& planned, bool on_device) {
  const double device = planned.total() + planned.temporaries, host = planned.host.total();
  return on_device ? MemoryNeeds{device, host} : MemoryNeeds{0, device + host};
}

MemoryNeeds memory_needs(const Bytes& planned, bool on_device) {
  const auto device = double(planned.total(Tier::kDevice)), host = double(planned.total(Tier::kHost));
  return on_device ? MemoryNeeds{device, host} : MemoryNeeds{0, device + host};
}

MemoryLimits configured_limits(const OffloadConfig& config, bool on_device) {
  MemoryLimits limits;
  if (config.device_memory)
    limits.device = MemoryLimit{double(*config.device_memory), "zeroshard.offload.device_memory"};
  if (config.host_memory) limits.host = MemoryLimit{double(*config.host_memory), "zeroshard.offload.host_memory"};
  if (on_device) return limits;
  if (limits.device && (!limits.host || limits.device->bytes < limits.host->bytes)) limits.host = limits.device;
  limits.device.reset();
  return limits;
}

std::optional<MemoryLimit> limit_of_host(const HostMemory& host, int ranks) {
  std::optional<MemoryLimit> limit;
  if (host.most() > 0) {
    limit = MemoryLimit{double(host.most() / ranks),
                        host.cgroup_limit ? "the limit of the control group" : "what this host has"};
    if (ranks > 1) limit->source += concat(": ", host.most(), " bytes for ", ranks, " ranks");
  }
  if (host.address_limit && (!limit || double(*host.address_limit) < limit->bytes))
    limit = MemoryLimit{double(*host.address_limit), "ulimit -v"};
  return limit;
}

std::string passed_limits(const MemoryNeeds& needs, const MemoryLimits& limits, bool on_device) {
  std::string text;
  const auto add = [&](double need, const std::optional<MemoryLimit>& limit, const char* what) {
    if (!limit || need <= limit->bytes) return;
    text += concat(text.empty() ? "each rank needs " : ", and ", bytes_text(need), " of ", what,
                   needs.with_activations ? ", activations included, and has " : ", activations aside, and has ",
                   bytes_text(limit->bytes), ": ", limit->source);
  };
  add(needs.device, limits.device, "the device's memory");
  add(needs.host, limits.host, on_device ? "the host's memory" : "memory");
  return text;
}

std::optional<FitChange> smallest_change(const FitSearch& search) {
  const std::vector<PlanOptions> changes = changes_of_keys(search);
  for (const PlanOptions& change : changes)
    if (fits(search.needs(change), search.limits)) return FitChange{keys_between(search.options, change), change};
  std::vector<PlanOptions> on_more{search.options};
  on_more.insert(on_more.end(), changes.begin(), changes.end());
  for (PlanOptions& change : on_more) {
    if (change.stage == 0) continue;  // at stage 0 every rank has everything, so more ranks do not help
    const std::optional<int> ranks = ranks_that_fit(search, change);
    if (!ranks) continue;
    change.world_size = *ranks;
    return FitChange{keys_between(search.options, change), change};
  }
  return std::nullopt;
}

std::string describe(const FitChange& change, int world_size) {
  std::string text;
  if (const int ranks = change.options.world_size; ranks != world_size)
    text = concat(ranks, " ranks with as much memory each");
  for (const KeyValue& key : change.keys) {
    text += concat(text.empty() ? "" : " and ", key.path, " = ", key.value);
    if (key.value == "\"nvme\"" && key.path.ends_with(".device")) text += " with an nvme_path";
  }
  return text;
}

std::string advice_to_fit(const FitSearch& search) {
  if (const std::optional<FitChange> change = smallest_change(search))
    return "The smallest change that fits: " + describe(*change, search.options.world_size);
  return "No stage, offload or number of ranks fits: allow more memory, or train a smaller model";
}

}  // namespace zeroshard
