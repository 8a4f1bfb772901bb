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
  int64_t model_bytes = 0;  // bytes of the model's own tensors of parameters, which are freed while units are made
};

// The memory limits of this rank.
struct RankLimits {
  MemoryLimits configured;  // limits that the configuration sets
  MemoryLimits all;         // `configured`; a tier without a key has the memory of the device or host as its limit
  HostMemory host;
  int ranks_of_host = 1;  // number of ranks that share the host's memory; 1 if that is unknown
};
// Reads the limits of this rank. Collective.
RankLimits read_limits(const EngineOptions& options, Comm& comm);

// Returns the configuration with every "auto" place replaced. Each rank makes a choice by its own limits, as
// plan/auto_offload.h describes. The choices are ordered, the fastest first, and all ranks take the last choice that a
// rank has made. If no choice fits, the result does not fit either: see check_memory(). `plan_of` makes the options of
// a plan from a configuration. Rank 0 logs the choice. Collective. Without "auto", returns the configuration as it is,
// and does nothing else.
Config choose_offload(const EngineOptions& options, const std::vector<UnitLayout>& layouts, const RankLimits& limits,
                      const std::function<PlanOptions(const Config&)>& plan_of, Comm& comm);

// Throws ConfigError on every rank if the plan of one rank exceeds its limits, before anything is allocated. The
// message has the need and the limit. It also has a change of the configuration that fits, or says that none does. If
// the plan fits and no key limits host memory, rank 0 logs a warning if the ranks of its host need more than is free
// there now. Collective.
void check_memory(const MemoryPlan& plan, const RankLimits& limits, const EngineOptions& options, Comm& comm);

}  // namespace zeroshard
