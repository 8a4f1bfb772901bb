#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "checkpoint/manifest.h"
#include "zeroshard/config.h"

// Finds out which optimizer's states a checkpoint contains. All front ends of the engine use the same rule.
namespace zeroshard {

struct SavedOptimizer {
  OptimizerConfig::Type type = OptimizerConfig::Type::kAdamW;
  std::string outside = {};  // class of an external optimizer, which has the states instead of the engine; empty: none
};

// Returns the names that checkpoints use for the moments of an optimizer, in the order of their slots. `is_matrix` says
// whether a parameter is updated as a matrix, and matters only for Muon.
std::vector<std::string> moment_names(OptimizerConfig::Type type, bool is_matrix = false);

nlohmann::json to_json(const SavedOptimizer& optimizer);

// Throws ValueError that names both optimizers if the checkpoint names another optimizer than `mine`. If the checkpoint
// names none (an import, an earlier version), throws ValueError if it has a state that the engine's optimizers have,
// but `mine` does not. The message then names this state.
void check_optimizer(const Manifest& manifest, const SavedOptimizer& mine);

}  // namespace zeroshard
