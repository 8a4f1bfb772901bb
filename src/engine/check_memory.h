#pragma once
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

// The limits of this rank. Throws ConfigError on every rank where the plan of one passes them, with need, have and a
// change that fits, before anything is allocated. Warns where it is possible, but more than is free on this host.
// Collective.
MemoryLimits check_memory(const MemoryPlan& plan, const EngineOptions& options, Comm& comm);

}  // namespace zeroshard
