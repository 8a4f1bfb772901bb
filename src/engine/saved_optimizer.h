#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "checkpoint/manifest.h"
#include "zeroshard/config.h"

// Finds out which optimizer's states a checkpoint contains. All fronts share this rule.
namespace zeroshard {

struct SavedOptimizer {
  OptimizerConfig::Type type = OptimizerConfig::Type::kAdamW;
  std::string outside = {};  // class of an external optimizer, which holds the states itself; empty: none
};

// Returns the kinds of the states that the engine keeps for an optimizer, with the names that checkpoints use.
std::vector<std::string> moment_names(OptimizerConfig::Type type, bool is_matrix = false);

nlohmann::json to_json(const SavedOptimizer& optimizer);

// Throws ValueError that names both optimizers if the checkpoint has the states of another optimizer than `mine`. If
// the checkpoint does not name its optimizer (an import, an earlier version), the kinds of its states decide as far as
// they can.
void check_optimizer(const Manifest& manifest, const SavedOptimizer& mine);

}  // namespace zeroshard
