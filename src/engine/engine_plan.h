#pragma once
#include <algorithm>
#include <vector>

#include "engine/ranks.h"
#include "layout/unit_layout.h"
#include "memory/ledger.h"
#include "plan/plan_ledger.h"
#include "zeroshard/engine.h"

namespace zeroshard {

// Completes the options by what the configuration and the model say. A device without an index becomes the current one.
// Options with param groups are not changed otherwise. Options without param groups take the optimizer of the
// configuration, if it names one, and get one param group with its settings. A configured Muon gets two param groups.
// The second one is for the hidden matrices, whose param_group in `units` is set to 1, and the first one is for the
// other parameters.
EngineOptions completed(EngineOptions options, std::vector<UnitDefinition>& units);

// The plan of what an engine will keep where. The ledger counts what the engine really keeps.
struct EnginePlan : PlanReport {
  // Compares the model and the options of the ranks, replaces "auto" places in engine_options.config, and checks that
  // the plan fits. Allocates no memory of the plan. Collective.
  EnginePlan(const std::vector<UnitDefinition>& units, EngineOptions& engine_options, Ranks& ranks);

  // Returns whether `condition` is true for the placement of some group.
  template <typename Condition>
  bool holds_for_some_group(const Condition& condition) const {
    return std::ranges::any_of(placements,
                               [&](const UnitPlacement& unit) { return std::ranges::any_of(unit.groups, condition); });
  }

  std::vector<UnitLayout> layouts;
  PlanOptions options;
  int64_t init_peak = 0;  // most bytes of the device that are in use at a time while the engine is built; 0 on the CPU
  Ledger ledger;
};

}  // namespace zeroshard
