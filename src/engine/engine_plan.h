#pragma once
#include <algorithm>
#include <vector>

#include "engine/ranks.h"
#include "layout/unit_layout.h"
#include "memory/ledger.h"
#include "plan/plan_ledger.h"
#include "zeroshard/engine.h"

namespace zeroshard {

// Completes the options by what the configuration and the model say. A device without an index becomes the current one;
// the CPU stays as it is. If the options have param groups, nothing else is changed. Otherwise they take the optimizer
// that the configuration names, and get one param group with the settings of this optimizer. If the configuration names
// no optimizer, the options keep theirs, and the param group has default settings. If the configuration names Muon,
// there are two param groups. The first one is for the parameters that are not hidden matrices. The second one is for
// the hidden matrices, whose param_group in `units` is changed from 0 to 1.
EngineOptions completed(EngineOptions options, std::vector<UnitDefinition>& units);

// The plan of an engine's memory: what it will keep, and on which tier. Also owns the engine's ledger, which counts
// what the engine really keeps.
struct EnginePlan : PlanReport {
  // Compares the ranks' models and engine_options.agreement, replaces every "auto" in engine_options.config, and makes
  // the plan. Throws ValueError if the ranks differ, or if the optimizer does not suit the model. Throws ConfigError if
  // the offload is not supported, or if the plan does not fit. Does not allocate the planned memory. Collective.
  EnginePlan(const std::vector<UnitDefinition>& units, EngineOptions& engine_options, Ranks& ranks);

  // Returns whether `condition` is true for the placement of some group.
  template <typename Condition>
  bool holds_for_some_group(const Condition& condition) const {
    return std::ranges::any_of(placements,
                               [&](const UnitPlacement& unit) { return std::ranges::any_of(unit.groups, condition); });
  }

  std::vector<UnitLayout> layouts;
  PlanOptions options;
  int64_t init_peak = 0;  // zeroshard::init_peak() for a model whose tensors are on the device; 0 on the CPU
  Ledger ledger;
};

}  // namespace zeroshard
