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
  // `configured`, and limits for the tiers that it leaves open: the device's memory, and this rank's share of the
  // host's memory. A tier has no limit here if its memory is unknown.
  MemoryLimits all;
  HostMemory host;
  int ranks_of_host = 1;  // number of ranks that share the host's memory; 1 if that is unknown
};
// Reads the limits of this rank. Collective.
RankLimits read_limits(const EngineOptions& options, Comm& comm);

// Returns the configuration with a device in place of each "auto". Without "auto", returns it as it is, and does
// nothing else. Otherwise collective. Each rank chooses the fastest configuration that is within its own limits, as
// plan/auto_offload.h describes. All ranks then take the slowest configuration that any rank has chosen. If no
// configuration fits, check_memory() throws later. Rank 0 logs the choice. `plan_of` makes the options of a plan from a
// configuration.
Config resolve_offload(const EngineOptions& options, const std::vector<UnitLayout>& layouts, const RankLimits& limits,
                       const std::function<PlanOptions(const Config&)>& plan_of, Comm& comm);

// Throws ConfigError on every rank if the plan exceeds the limits of some rank. Call it before anything is allocated.
// The message has the need and the limit. It also names a change of the configuration with which the model fits, or
// says that there is none. If the plan fits, rank 0 compares the need of all ranks of its host with the host memory
// that is free now, unless a key limits host memory. It logs a warning if the need is larger. Collective.
void check_memory(const MemoryPlan& plan, const RankLimits& limits, const EngineOptions& options, Comm& comm);

}  // namespace zeroshard
