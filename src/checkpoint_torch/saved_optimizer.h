#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "checkpoint/manifest.h"
#include "zeroshard/config.h"

// These functions record in a checkpoint which optimizer's states it contains, and check this before a load.
namespace zeroshard {

struct SavedOptimizer {
  OptimizerConfig::Type type = OptimizerConfig::Type::kAdamW;
  std::string outside = {};  // class of the external optimizer that has the states; empty: the engine has them
};

// Returns the names that checkpoints use for the moments of an optimizer, in the order of their slots. `is_matrix` says
// whether a parameter is updated as a matrix, and matters only for Muon.
std::vector<std::string> moment_names(OptimizerConfig::Type type, bool is_matrix = false);

nlohmann::json to_json(const SavedOptimizer& optimizer);

// Throws ValueError that names both optimizers if the checkpoint names another optimizer than `mine`. A checkpoint that
// was imported, or saved by an earlier version, may name no optimizer. In this case throws ValueError if the checkpoint
// has a state that another optimizer of the engine has and `mine` does not. The message then names this state.
void check_optimizer(const Manifest& manifest, const SavedOptimizer& mine);

}  // namespace zeroshard
