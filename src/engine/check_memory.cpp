#include "engine/check_memory.h"

#include <algorithm>
#include <string>

#include "base/format.h"
#include "base/log.h"
#include "checkpoint/agreement.h"
#include "device/total_memory.h"
#include "engine/consensus.h"
#include "plan/auto_offload.h"
#include "plan/plan_ledger.h"
#include "zeroshard/error.h"

namespace zeroshard {
namespace {

int ranks_that_share(const HostMemory& memory, Comm& comm) {
  if (comm.world_size() == 1) return 1;
  std::vector<int64_t> machines(size_t(comm.world_size()), 0);
  const int64_t mine = number_of(memory);
  machines[size_t(comm.rank())] = mine;
  machines = all_reduce(comm, std::move(machines), ReduceOp::kMax, "memory of hosts");
  return mine == 0 ? 1 : int(std::count(machines.begin(), machines.end(), mine));
}

std::vector<UnitLayout> laid_out_for(const PlanOptions& options, std::vector<UnitLayout> layouts) {
  for (UnitLayout& unit : layouts)
    unit = make_unit_layout(unit.name, std::move(unit.params), options.world_size, options.parts);
  return layouts;
}

std::string refusal(const MemoryPlan& plan, const MemoryLimits& limits, bool may_use_files) {
  const bool on_device = plan.options.on_device;
  const std::string passed = passed_limits(memory_needs(plan.bytes, on_device), limits, on_device);
  if (passed.empty()) return "";
  const auto needs = [&](const PlanOptions& options) {
    const std::vector<UnitLayout> layouts = laid_out_for(options, plan.layouts);
    return memory_needs(plan_ledger(layouts, options).bytes, on_device);
  };
  return concat("the model does not fit: ", passed, ". ", advice_to_fit({plan.options, limits, needs, may_use_files}),
                ". `zeroshard plan` shows what needs how much");
}

bool may_use_files(const EngineOptions& options) {
  return options.external_optimizer.empty();
}

void warn_of_scarce_memory(const MemoryPlan& plan, const HostMemory& host, int ranks, int rank) {
  const double need = memory_needs(plan.bytes, plan.options.on_device).host * ranks;
  const double free = double(host.free()) + (plan.options.on_device ? 0 : double(plan.model_bytes) * ranks);
  if (host.most() == 0 || need <= free || rank != 0) return;
  log(LogLevel::kWarning,
      concat("the ranks of this host need ", int64_t(need), " bytes of its memory, activations aside, and ",
             int64_t(free), " are free: other processes hold the rest of ", host.most()));
}

}  // namespace

RankLimits read_limits(const EngineOptions& options, Comm& comm) {
  const bool on_device = !options.device.is_cpu();
  RankLimits limits;
  limits.host = read_host_memory();
  limits.ranks_of_host = ranks_that_share(limits.host, comm);
  limits.configured = limits.all = configured_limits(options.config.offload, on_device);
  if (!limits.all.host) limits.all.host = limit_of_host(limits.host, limits.ranks_of_host);
  if (on_device && !limits.all.device) {
    if (const std::optional<int64_t> bytes = total_memory(options.device))
      limits.all.device = MemoryLimit{double(*bytes), concat("what ", options.device.str(), " has")};
  }
  return limits;
}

Config resolve_offload(const EngineOptions& options, const std::vector<UnitLayout>& layouts, const RankLimits& limits,
                       const std::function<PlanOptions(const Config&)>& plan_of, Comm& comm) {
  const Config& asked = options.config;
  if (!has_auto_offload(asked)) return asked;
  const bool on_device = !options.device.is_cpu();
  const std::vector<Config> choices = offload_choices(asked, on_device, may_use_files(options));
  const auto needs = [&](const Config& config) {
    return memory_needs(plan_ledger(layouts, plan_of(config)).bytes, on_device);
  };
  OffloadChoice choice;
  together(comm.host(), "offload", [&] { choice = choose_offload(choices, limits.all, needs, on_device); });
  const auto index = size_t(all_reduce(comm, {int64_t(choice.index)}, ReduceOp::kMax, "offload")[0]);
  if (index != choice.index) choice = {index, "another rank would not fit", OffloadChoice::Fit::kYes};
  if (comm.rank() == 0) log(LogLevel::kInfo, describe_choice(asked, choices[index], choice));
  return choices[index];
}

void check_memory(const MemoryPlan& plan, const RankLimits& limits, const EngineOptions& options, Comm& comm) {
  const bool host_is_told = limits.configured.host.has_value();
  try {
    together(comm.host(), "memory", [&] {
      if (const std::string text = refusal(plan, limits.all, may_use_files(options)); !text.empty())
        throw ConfigError(host_is_told ? text : text + ". zeroshard.offload.host_memory overrides what the host has");
    });
  } catch (const ValueError& error) {
    throw ConfigError(error.what());
  }
  if (!host_is_told) warn_of_scarce_memory(plan, limits.host, limits.ranks_of_host, comm.rank());
}

}  // namespace zeroshard
