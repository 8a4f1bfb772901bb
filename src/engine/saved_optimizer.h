#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "checkpoint/manifest.h"
#include "zeroshard/config.h"

// Of which optimizer the states in a checkpoint are: the same rule for every front.
namespace zeroshard {

struct SavedOptimizer {
  OptimizerConfig::Type type = OptimizerConfig::Type::kAdamW;
  std::string outside = {};  // the class of one outside the engine, which then holds the states; empty: none
};

// The kinds of the states that the core keeps for it, as checkpoints name them.
std::vector<std::string> moment_names(OptimizerConfig::Type type, bool is_matrix = false);

nlohmann::json to_json(const SavedOptimizer& optimizer);

// Throws ValueError, naming both, when the states in the checkpoint are of another optimizer than `mine`. If the
// checkpoint does not say (an import, an earlier version), the kinds of its states decide, as far as they can.
void check_optimizer(const Manifest& manifest, const SavedOptimizer& mine);

}  // namespace zeroshard
