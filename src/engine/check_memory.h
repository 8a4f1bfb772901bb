#pragma once
#include <functional>
#include <vector>

#include "comm/comm.h"
#include "layout/unit_layout.h"
#include "plan/memory_limits.h"
#include "zeroshard/engine.h"

namespace zeroshard {

// What an engine is about to hold.
struct MemoryPlan {
  const std::vector<UnitLayout>& layouts;
  const PlanOptions& options;
  const Bytes& bytes;
  int64_t model_bytes = 0;  // of the parameters as they are now, which are freed meanwhile
};

// What this rank may hold.
struct RankLimits {
  MemoryLimits configured;  // by keys of the configuration
  MemoryLimits all;         // where no key says it, what the device and the host have
  HostMemory host;
  int ranks_of_host = 1;
};
// Collective.
RankLimits read_limits(const EngineOptions& options, Comm& comm);

// The configuration with a place where it says "auto": the first that fits on every rank. `plan_of` makes the options
// of a plan from a configuration. Rank 0 tells what it chose. Collective.
Config choose_offload(const EngineOptions& options, const std::vector<UnitLayout>& layouts, const RankLimits& limits,
                      const std::function<PlanOptions(const Config&)>& plan_of, Comm& comm);

// Throws ConfigError on every rank where the plan of one passes its limits, with need, have and a change that fits,
// before anything is allocated. Warns where it is possible, but more than is free on this host. Collective.
void check_memory(const MemoryPlan& plan, const RankLimits& limits, const EngineOptions& options, Comm& comm);

}  // namespace zeroshard
