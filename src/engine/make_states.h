#pragma once
#include <memory>

#include "group/optimizer_states.h"
#include "layout/shard_layout.h"
#include "memory/ledger.h"
#include "placement/placement.h"
#include "zeroshard/engine.h"

namespace zeroshard {

struct StatesContext {
  const EngineOptions& options;
  Ledger& ledger;  // outlives the states
};

// The optimizer states of one group on the tier of its placement, where that is not the device's: Groups makes those.
// All are zero.
std::unique_ptr<OptimizerStates> make_states(const ShardLayout& layout, const GroupPlacement& place,
                                             const StatesContext& context);

}  // namespace zeroshard
