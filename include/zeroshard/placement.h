#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "zeroshard/dtype.h"
#include "zeroshard/tier.h"

// The user's rules about where the parts of a model are placed.
namespace zeroshard {

// An entry of "zeroshard.placement". It says whether some units are sharded or replicated at stage 3.
struct PlacementRule {
  // Selects units by the last parts of their dotted names. A part is a name, "*" (any), a number or a range of numbers:
  // "layers.0-3", "encoder.layers.*", "lm_head".
  std::string units;
  bool replicated = false;  // true: whole on every rank; false: sharded, even if the unit is small
};

struct PlacementOptions {
  int world_size = 1;  // ranks that shard one copy of the parameters among themselves
  int parts = 1;       // groups of that many ranks that share one copy of gradients and optimizer states
  int stage = 0;
  bool shard_one_rank = false;      // true: a single rank gathers and reduces like several ranks do
  std::optional<DType> wire_dtype;  // dtype of gradients on the wire; unset: the dtype of their parameters
  std::optional<DType> grad_dtype;  // dtype of reduced gradients; unset: fp32 while accumulating, else the wire dtype
  int optimizer_slots = 2;  // moments that the optimizer keeps for each element in addition to its master weight
  DType moment_dtype = DType::kFloat32;
  int64_t grad_accumulation_steps = 1;
  Tier parameter_tier = Tier::kDevice;  // tier of the shards of gathered units, at stage 3
  bool on_device = false;               // ranks run on a GPU or another accelerator; false: on the CPU
  int64_t parameters_in_memory = 0;     // if parameters are in files: how many elements of a rank stay in host memory
  bool masters_in_memory = false;   // true: fp32 parameters that are their own master weights also stay in host memory
  Tier state_tier = Tier::kDevice;  // tier of master weights and moments, from stage 1 on
  double state_share = 1;  // share (0 to 1) of each group's states on state_tier; the others stay on the device
  // Tier of reduced gradients, from stage 1 on; kFile only if the states are in files.
  Tier gradient_tier = Tier::kDevice;
  bool delayed_update = false;  // true: the new parameters of a step wait on the host until the end of the next step
  int64_t persistence_threshold = 100'000;  // units of at most this many elements stay unsharded
  std::vector<PlacementRule> rules;         // if several rules match a unit, the last one counts
};

// Returns the number of ranks that shard one copy of the optimizer states.
inline int state_ranks(const PlacementOptions& options) {
  return options.world_size * options.parts;
}

}  // namespace zeroshard
