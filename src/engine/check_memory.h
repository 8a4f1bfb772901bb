#pragma once
#include <functional>
#include <vector>

#include "comm/comm.h"
#include "layout/unit_layout.h"
#include "plan/memory_limits.h"
#include "zeroshard/engine.h"

namespace zeroshard {

// The memory that an engine is about to allocate.
struct MemoryPlan {
  const std::vector<UnitLayout>& layouts;
  const PlanOptions& options;
  const Bytes& bytes;
  int64_t model_bytes = 0;  // bytes of the model's own parameters, which are freed while the engine is built
};

// The memory limits of this rank.
struct RankLimits {
  MemoryLimits configured;  // limits that the configuration sets
  MemoryLimits all;         // `configured`, or the memory of the device and host if no key sets a limit
  HostMemory host;
  int ranks_of_host = 1;
};
// Reads the limits of this rank. Collective.
RankLimits read_limits(const EngineOptions& options, Comm& comm);

// Returns the configuration with every "auto" place replaced by the first place that fits on every rank. `plan_of`
// makes the options of a plan from a configuration. Rank 0 logs the choice. Collective.
Config choose_offload(const EngineOptions& options, const std::vector<UnitLayout>& layouts, const RankLimits& limits,
                      const std::function<PlanOptions(const Config&)>& plan_of, Comm& comm);

// Throws ConfigError on every rank if the plan of one rank exceeds its limits, before anything is allocated. The
// message has the need, the limit and a change that fits. Logs a warning if the plan fits, but needs more than is free
// on this host now. Collective.
void check_memory(const MemoryPlan& plan, const RankLimits& limits, const EngineOptions& options, Comm& comm);

}  // namespace zeroshard
