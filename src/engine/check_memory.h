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
  int64_t model_bytes = 0;  // bytes of the model's own parameter tensors, which are freed while units are made
};

// The memory limits of this rank.
struct RankLimits {
  MemoryLimits configured;  // limits that the configuration sets
  // `configured`, and for a tier without a key the memory of the device, or this rank's share of the host's memory, if
  // that is known.
  MemoryLimits all;
  HostMemory host;
  int ranks_of_host = 1;  // number of ranks that share the host's memory; 1 if that is unknown
};
// Reads the limits of this rank. Collective.
RankLimits read_limits(const EngineOptions& options, Comm& comm);

// Returns the configuration with every "auto" place replaced. Each rank chooses the fastest configuration that is
// within its own limits, as plan/auto_offload.h describes. All ranks then take the slowest configuration that any rank
// has chosen. If none fits, check_memory() throws later. `plan_of` makes the options of a plan from a configuration.
// Rank 0 logs the choice. Collective. Without "auto", returns the configuration as it is, and does nothing else.
Config choose_offload(const EngineOptions& options, const std::vector<UnitLayout>& layouts, const RankLimits& limits,
                      const std::function<PlanOptions(const Config&)>& plan_of, Comm& comm);

// Throws ConfigError on every rank if the plan exceeds the limits of some rank. Call it before anything is allocated.
// The message has the need and the limit. It also names a change of the configuration with which the model fits, or
// says that there is none. If the plan fits and no key limits host memory, rank 0 logs a warning if the ranks of its
// host need more host memory than is free now. Collective.
void check_memory(const MemoryPlan& plan, const RankLimits& limits, const EngineOptions& options, Comm& comm);

}  // namespace zeroshard
