#pragma once
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "plan/memory_limits.h"
#include "zeroshard/activations.h"
#include "zeroshard/plan.h"
#include "zeroshard/step_time.h"

// Defines the results of `zeroshard plan`, and prints them in two ways.
namespace zeroshard::cli {

// The parsed command line.
struct PlanInputs {
  std::optional<int64_t> num_params;  // set if there is no `model`
  std::optional<ModelShapes> model;
  PlanOptions options;
  std::vector<int> stages;
  std::string optimizer_name;
  std::optional<double> device_bytes;     // memory limit of a device; of the host, if ranks run on the CPU
  std::optional<double> host_bytes;       // memory limit of the host, if ranks run on devices
  std::optional<double> device_overhead;  // bytes on each device for its context and the collectives' own buffers
  int64_t micro_batch = 1;                // in sequences, from the config
  int64_t sequence_parallel = 1;          // ranks that share a sequence, from the config
  std::optional<ActivationOptions> activations;  // only with a `model`
  Tier checkpoints = Tier::kDevice;              // tier of activation checkpoints, from the config
  std::vector<std::string> notes;
  std::optional<Config> config;
  std::optional<MachineRates> rates;  // set if the user asks for the time of a step

  // Ranks of all replicas.
  int ranks() const { return options.world_size * options.replicas; }
  int64_t numel() const { return model ? model->numel() : *num_params; }
  PlannedBytes plan(const PlanOptions& options_of) const {
    const PlanOptions at = with_effect(options_of);
    return model ? plan_model(*model, at) : plan_count(*num_params, at);
  }
  PlannedActivations planned_activations() const {
    return activations ? plan_activations(*model, *activations) : PlannedActivations();
  }
  double activation_bytes() const { return planned_activations().total(); }
  // Bytes that must fit on a device besides the total.
  double besides() const { return device_overhead.value_or(0) + activation_bytes(); }
  MemoryNeeds memory_needs(const PlannedBytes& planned) const {
    MemoryNeeds needs = zeroshard::memory_needs(planned, options.on_device);
    (options.on_device ? needs.device : needs.host) += besides();
    const PlannedActivations planned_inputs = planned_activations();
    needs.host += checkpoints == Tier::kHost ? planned_inputs.elsewhere : planned_inputs.on_the_way;
    needs.with_activations = activations.has_value();
    return needs;
  }
  // Bytes that must fit on a device.
  double needed(const PlannedBytes& planned) const {
    const MemoryNeeds needs = memory_needs(planned);
    return options.on_device ? needs.device : needs.host;
  }
  // Returns the options as the user gave them, even if some have no effect at this stage.
  PlanOptions asked_at_stage(int stage) const {
    PlanOptions at = options;
    at.stage = stage;
    return at;
  }
  PlanOptions at_stage(int stage) const { return with_effect(asked_at_stage(stage)); }
  // Nothing leaves the device at stage 0. Parameters leave it only at stage 3.
  static PlanOptions with_effect(PlanOptions at) {
    if (at.stage == 0) at.state_tier = at.gradient_tier = Tier::kDevice;
    if (at.stage != 3) at.parameter_tier = Tier::kDevice;
    return at;
  }
};

struct StagePlan {
  int stage;
  PlannedBytes bytes;
  std::optional<FitReport> fit;
  std::string passed_limits;  // "" if it fits, or if no limit is known
  std::string advice;         // a change with which it would fit
  std::optional<FitChange> change;
  std::optional<int64_t> longest_sequence;  // the longest sequence that fits; 0 if none does
};

// A configuration that fits. There is one for all planned stages.
struct Recommendation {
  FitChange change;
  MemoryNeeds needs;
};

void print_plan_table(const PlanInputs& inputs, const std::vector<StagePlan>& plans,
                      const std::optional<Recommendation>& recommended);
// Prints one object for one stage. For several stages, prints the same objects under "stages".
void print_plan_json(const PlanInputs& inputs, const std::vector<StagePlan>& plans,
                     const std::optional<Recommendation>& recommended);
void print_params(const ModelShapes& model, bool as_json);
// Prints where each unit's state is placed, for each stage.
void print_placements(const PlanInputs& inputs, bool as_json);
// Print a header and one row per unit, as a table or as JSON. With `sizes`, rows have elements and bytes.
void print_placement_table(const std::vector<PlannedUnit>& units, bool sizes);
nlohmann::ordered_json placements_as_json(const std::vector<PlannedUnit>& units, bool sizes);

}  // namespace zeroshard::cli
