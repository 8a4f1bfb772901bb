#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "zeroshard/dtype.h"
#include "zeroshard/tier.h"

// The options that decide which states of a model a rank keeps, and on which tier.
namespace zeroshard {

// An entry of "zeroshard.placement". It says whether the selected units are sharded or replicated at stage 3.
struct PlacementRule {
  // Unit names and patterns consist of parts with dots between them. The pattern selects each unit whose name ends with
  // parts that match those of the pattern. A part of the pattern is a name, a number, a range of numbers, or "*", which
  // matches any part: "layers.0-3", "encoder.layers.*", "lm_head".
  std::string units;
  bool replicated = false;  // true: whole on every rank; false: sharded, even if the unit is small
};

struct PlacementOptions {
  int world_size = 1;  // ranks that shard one copy of the parameters among themselves
  int parts = 1;       // number of groups of world_size ranks that share one copy of gradients and optimizer states
  int stage = 0;
  bool shard_one_rank = false;      // true: a single rank gathers and reduces like several ranks do
  std::optional<DType> wire_dtype;  // dtype in which ranks send gradients; unset: the dtype of the parameters
  // Dtype of reduced gradients. Unset: fp32 if a step has several micro-batches, else the dtype in which ranks send
  // gradients.
  std::optional<DType> grad_dtype;
  int optimizer_slots = 2;  // moments that the optimizer keeps for each element in addition to its master weight
  DType moment_dtype = DType::kFloat32;
  int64_t grad_accumulation_steps = 1;
  // Tier of the shards of gathered units, at stage 3. fp32 parameters that the device updates stay on the device.
  Tier parameter_tier = Tier::kDevice;
  bool on_device = false;  // ranks run on a GPU or another accelerator; false: on the CPU
  // If parameters are in files: the largest number of elements that a rank keeps in host memory instead.
  int64_t parameters_in_memory = 0;
  bool masters_in_memory = false;   // true: trained fp32 parameters are in host memory, even if others are in files
  Tier state_tier = Tier::kDevice;  // tier of master weights and moments, from stage 1 on
  double state_share = 1;           // share (0 to 1) of each group's states on state_tier; the rest stays on the device
  // Tier of reduced gradients, from stage 1 on; kFile only if the states are in files.
  Tier gradient_tier = Tier::kDevice;
  bool delayed_update = false;  // true: the new parameters of a step wait on the host until the end of the next step
  // At stage 3, units of at most this many elements stay gathered between updates.
  int64_t persistence_threshold = 100'000;
  std::vector<PlacementRule> rules;  // if several rules match a unit, the last one counts
};

// Returns the number of ranks that shard one copy of the optimizer states.
inline int state_ranks(const PlacementOptions& options) {
  return options.world_size * options.parts;
}

}  // namespace zeroshard
