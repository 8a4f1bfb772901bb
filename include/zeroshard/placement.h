#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "zeroshard/dtype.h"
#include "zeroshard/tier.h"

// The user's rules on where parts of a model lie.
namespace zeroshard {

// One entry of "zeroshard.placement": where the parameters of some units lie at stage 3.
struct PlacementRule {
  // Which units: the last parts of a unit's name, separated by dots. A part is a name, "*" (any), a number or a range
  // of numbers: "layers.0-3", "encoder.layers.*", "lm_head".
  std::string units;
  bool replicated = false;  // whole on every rank; false: sharded, however small the unit
};

struct PlacementOptions {
  int world_size = 1;
  int stage = 0;
  bool shard_one_rank = false;      // a world of one gathers and reduces as several ranks do
  std::optional<DType> wire_dtype;  // gradients on the wire; unset: the dtype of their parameters
  std::optional<DType> grad_dtype;  // reduced gradients; unset: fp32 while accumulating, else the wire dtype
  int optimizer_slots = 2;          // moments of each element, which the optimizer keeps beside its master weight
  DType moment_dtype = DType::kFloat32;
  int64_t grad_accumulation_steps = 1;
  Tier parameter_tier = Tier::kDevice;  // of the shards of gathered units, at stage 3
  bool on_device = false;               // ranks run on a GPU or the like, beside the host
  int64_t parameters_in_memory = 0;     // elements of a rank that stay in the host's memory where others go to files
  bool masters_in_memory = false;       // fp32 parameters that are their own master weights stay there, too
  Tier state_tier = Tier::kDevice;      // of master weights and moments, from stage 1 on
  double state_share = 1;               // of each group's states, 0 to 1, on that tier; the device has the others
  Tier gradient_tier = Tier::kDevice;   // of reduced gradients, from stage 1 on; kFile with states there alone
  bool delayed_update = false;          // new parameters of a step wait on the host until the end of the next one
  int64_t persistence_threshold = 100'000;  // units of at most this many elements stay unsharded
  std::vector<PlacementRule> rules;         // if several match one unit, the last one counts
};

}  // namespace zeroshard
