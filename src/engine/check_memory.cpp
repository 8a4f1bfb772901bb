#include "engine/check_memory.h"

#include <algorithm>
#include <string>

#include "base/format.h"
#include "base/log.h"
#include "checkpoint/agreement.h"
#include "engine/consensus.h"
#include "memory/host_memory.h"
#include "plan/plan_ledger.h"
#include "zeroshard/error.h"

namespace zeroshard {
namespace {

int ranks_of_this_host(Comm& comm) {
  if (comm.world_size() == 1) return 1;
  std::vector<int64_t> machines(size_t(comm.world_size()), 0);
  const int64_t mine = machine_number();
  machines[size_t(comm.rank())] = mine;
  machines = all_reduce(comm, std::move(machines), ReduceOp::kMax, "memory of hosts");
  return mine == 0 ? 1 : int(std::count(machines.begin(), machines.end(), mine));
}

std::vector<UnitLayout> with_world_size(std::vector<UnitLayout> layouts, int world_size) {
  for (UnitLayout& unit : layouts) unit = make_unit_layout(unit.name, std::move(unit.params), world_size);
  return layouts;
}

std::string refusal(const MemoryPlan& plan, const MemoryLimits& limits, bool may_use_files) {
  const bool on_device = plan.options.on_device;
  const std::string passed = passed_limits(memory_needs(plan.bytes, on_device), limits, on_device);
  if (passed.empty()) return "";
  const auto needs = [&](const PlanOptions& options) {
    const std::vector<UnitLayout> layouts = with_world_size(plan.layouts, options.world_size);
    return memory_needs(plan_ledger(layouts, options).bytes, on_device);
  };
  return concat("the model does not fit: ", passed, ". ", advice_to_fit({plan.options, limits, needs, may_use_files}),
                ". `zeroshard plan` shows what needs how much");
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

MemoryLimits check_memory(const MemoryPlan& plan, const EngineOptions& options, Comm& comm) {
  const bool on_device = plan.options.on_device;
  const int ranks = ranks_of_this_host(comm);
  MemoryLimits limits = configured_limits(options.config.offload, on_device);
  const HostMemory host = read_host_memory();
  MemoryLimits checked = limits;
  if (!checked.host) checked.host = limit_of_host(host, ranks);
  try {
    together(comm.host(), "memory", [&] {
      if (const std::string text = refusal(plan, checked, options.external_optimizer.empty()); !text.empty())
        throw ConfigError(limits.host ? text : text + ". zeroshard.offload.host_memory overrides what the host has");
    });
  } catch (const ValueError& error) {
    throw ConfigError(error.what());
  }
  if (!limits.host) warn_of_scarce_memory(plan, host, ranks, comm.rank());
  return limits;
}

}  // namespace zeroshard
