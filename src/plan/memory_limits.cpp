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

struct Change {
  std::string keys;
  PlanOptions options;
};

// All states go, whatever the ratio is now.
Change with_all_states(std::string keys, PlanOptions options) {
  if (options.state_share == 1) return {std::move(keys), options};
  options.state_share = 1;
  options.gradient_tier = tier_of_gradients(options);
  return {concat(keys, keys.empty() ? "" : " and ", "zero_optimization.offload_optimizer.ratio = 1"), options};
}

// States go to the tier, as many as the ratio says, and all of them. `keys` are for states that are elsewhere.
std::vector<Change> to_tier(Tier tier, std::string keys, PlanOptions options) {
  const bool are_there = options.state_tier == tier, is_part = options.state_share < 1;
  if (are_there) keys = "";
  options.state_tier = tier;
  options.gradient_tier = tier_of_gradients(options);
  std::vector<Change> changes;
  if (!are_there && is_part) changes.push_back({keys, options});
  if (!are_there || is_part) changes.push_back(with_all_states(keys, options));
  return changes;
}

std::vector<Change> offloads_of_state(const FitSearch& search, const PlanOptions& options) {
  std::vector<Change> changes;
  if (options.stage == 0) return changes;
  const std::string key = "zero_optimization.offload_optimizer.device = ";
  if (options.on_device && options.state_tier != Tier::kFile) changes = to_tier(Tier::kHost, key + "\"cpu\"", options);
  if (!search.may_use_files) return changes;
  for (Change& change : to_tier(Tier::kFile, key + "\"nvme\" with an nvme_path", options))
    changes.push_back(std::move(change));
  const bool are_in_files = options.parameter_tier == Tier::kFile;
  if (options.stage != 3 || options.delayed_update || (are_in_files && options.parameters_in_memory == 0))
    return changes;
  Change more = changes.empty() ? Change{"", options} : changes.back();
  if (!more.keys.empty()) more.keys += " and ";
  more.keys += are_in_files ? "zero_optimization.offload_param.max_in_cpu = 0"
                            : "zero_optimization.offload_param.device = \"nvme\" with an nvme_path and max_in_cpu 0";
  more.options.parameter_tier = Tier::kFile;
  more.options.parameters_in_memory = 0;
  changes.push_back(std::move(more));
  return changes;
}

// Where gradients are to stay on the device, each is followed by the same with gradients that leave it, too.
std::vector<Change> offloads_of_gradients(const FitSearch& search, const PlanOptions& options) {
  std::vector<Change> changes = offloads_of_state(search, options);
  const bool may_leave = options.gradients == OffloadConfig::Gradients::kDevice && options.on_device;
  if (!may_leave || options.stage == 0) return changes;
  std::vector<Change> all;
  const auto add_with_gradients = [&](Change change) {
    change.keys += concat(change.keys.empty() ? "" : " and ", "zeroshard.offload.gradients = \"auto\"");
    change.options.gradients = OffloadConfig::Gradients::kAuto;
    change.options.gradient_tier = tier_of_gradients(change.options);
    all.push_back(std::move(change));
  };
  if (options.state_tier != Tier::kDevice) add_with_gradients({"", options});
  for (Change& change : changes) {
    all.push_back(change);
    add_with_gradients(std::move(change));
  }
  return all;
}

// Beside states in files gradients can be there, too: they go last, as each micro-batch writes them.
std::vector<Change> offloads(const FitSearch& search, const PlanOptions& options) {
  std::vector<Change> changes = offloads_of_gradients(search, options), to_files;
  if (!search.may_use_files || options.stage == 0) return changes;
  const auto add = [&](Change change) {
    if (change.options.gradient_tier == Tier::kFile) return;
    change.keys += concat(change.keys.empty() ? "" : " and ", "zeroshard.offload.gradients = \"nvme\"");
    change.options.gradients = OffloadConfig::Gradients::kNvme;
    change.options.gradient_tier = tier_of_gradients(change.options);
    if (change.options.gradient_tier == Tier::kFile) to_files.push_back(std::move(change));
  };
  add({"", options});
  for (const Change& change : changes) add(change);
  changes.insert(changes.end(), to_files.begin(), to_files.end());
  return changes;
}

// Of one key each, then of two. A rank alone has nobody to share with: there a stage only allows offload.
std::vector<Change> changes_of_keys(const FitSearch& search) {
  std::vector<Change> changes, more;
  for (int stage = search.options.stage + 1; stage <= 3; ++stage) {
    PlanOptions options = search.options;
    options.stage = stage;
    const std::string key = concat("zero_optimization.stage = ", stage);
    changes.push_back({key, options});
    for (const Change& offload : offloads(search, options))
      more.push_back({key + " and " + offload.keys, offload.options});
  }
  for (Change& offload : offloads(search, search.options)) changes.push_back(std::move(offload));
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

std::string advice_to_fit(const FitSearch& search) {
  for (const Change& change : changes_of_keys(search))
    if (fits(search.needs(change.options), search.limits))
      return concat("The smallest change that fits: ", change.keys);
  std::vector<Change> on_more{{"", search.options}};
  for (Change& change : changes_of_keys(search)) on_more.push_back(std::move(change));
  for (const Change& change : on_more) {
    if (change.options.stage == 0) continue;  // every rank holds all
    if (const std::optional<int> ranks = ranks_that_fit(search, change.options))
      return concat("The smallest change that fits: ", *ranks, " ranks with as much memory each",
                    change.keys.empty() ? "" : " and ", change.keys);
  }
  return "No stage, offload or number of ranks fits: allow more memory, or train a smaller model";
}

}  // namespace zeroshard
