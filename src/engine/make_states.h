#pragma once
#include <memory>

#include "group/file_states.h"
#include "group/optimizer_states.h"
#include "layout/shard_layout.h"
#include "memory/ledger.h"
#include "placement/placement.h"
#include "zeroshard/engine.h"

namespace zeroshard {

struct StatesContext {
  const EngineOptions& options;
  Ledger& ledger;        // outlives the states
  SwapSpace* swap;       // also; null where no states are in files
  size_t& next_in_file;  // groups whose states are in files get numbers in the order in which they are made
};

// The optimizer states of one group on the tier of its placement, where that is not the device's: Groups makes those.
// All are zero.
std::unique_ptr<OptimizerStates> make_states(const ShardLayout& layout, const GroupPlacement& place,
                                             const StatesContext& context);

}  // namespace zeroshard
