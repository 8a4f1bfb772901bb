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

// The inputs and results of `zeroshard plan`, and the functions that print the results as tables or as JSON.
namespace zeroshard::cli {

// The bytes of memory that a plan may use. Unset limits are not known.
struct PlanLimits {
  std::optional<double> device;           // of a device, or of the host if ranks run on the CPU
  std::optional<double> host;             // of the host, if ranks run on devices
  std::optional<double> device_overhead;  // used on each device for its context and for collectives
};

// Settings of the configuration that a plan of activations needs.
struct PlanBatch {
  int64_t sequences = 1;             // of a micro-batch
  int64_t sequence_parallel = 1;     // ranks that share a sequence
  Tier checkpoints = Tier::kDevice;  // where activation checkpoints are
};

// The values from the command line, and from the configuration file and the model that the command line names.
struct PlanInputs {
  std::optional<int64_t> num_params;  // set if there is no `model`
  std::optional<ModelShapes> model;
  PlanOptions options;
  std::vector<int> stages;
  std::string optimizer_name;
  PlanLimits limits;
  PlanBatch batch;
  std::optional<ActivationOptions> activations;  // only with a `model`
  std::vector<std::string> notes;
  std::optional<Config> config;
  std::optional<double> network;      // bytes per second of a host's link to the others, in each direction
  std::optional<MachineRates> rates;  // set if the user gave rates for the time of a step

  // Returns the number of ranks of all replicas together.
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
  // Returns the bytes of the device's overhead and of the activations. They must fit in addition to the plan, on a
  // device or, if ranks run on the CPU, in the host's memory.
  double besides() const { return limits.device_overhead.value_or(0) + activation_bytes(); }
  MemoryNeeds memory_needs(const PlannedBytes& planned) const {
    MemoryNeeds needs = zeroshard::memory_needs(planned, options.on_device);
    (options.on_device ? needs.device : needs.host) += besides();
    const PlannedActivations planned_inputs = planned_activations();
    needs.host += batch.checkpoints == Tier::kHost ? planned_inputs.elsewhere : planned_inputs.on_the_way;
    needs.with_activations = activations.has_value();
    return needs;
  }
  // Returns all bytes that a device, or the host's memory if ranks run on the CPU, must hold.
  double needed(const PlannedBytes& planned) const {
    const MemoryNeeds needs = memory_needs(planned);
    return options.on_device ? needs.device : needs.host;
  }
  // Returns the user's options with another stage. Below stage 3, replicas that share states become one replica with
  // all of their ranks. Unlike at_stage(), keeps options of offload that have no effect at that stage.
  PlanOptions asked_at_stage(int stage) const {
    PlanOptions at = options;
    at.stage = stage;
    if (stage == 3) return at;
    at.world_size *= at.parts;  // below stage 3 all ranks are one group: see Config::shard_ranks()
    at.replicas /= at.parts;
    at.parts = 1;
    return at;
  }
  PlanOptions at_stage(int stage) const { return with_effect(asked_at_stage(stage)); }
  // Returns `at` without the options of offload that have no effect at its stage. At stage 0 no state leaves the
  // device. Parameters leave the device only at stage 3.
  static PlanOptions with_effect(PlanOptions at) {
    if (at.stage == 0) at.state_tier = at.gradient_tier = Tier::kDevice;
    if (at.stage != 3) at.parameter_tier = Tier::kDevice;
    return at;
  }
};

struct StagePlan {
  int stage;
  PlannedBytes bytes;
  std::optional<FitReport> fit;  // unset if no limit is known
  std::string passed_limits;     // text about the memory limits that the plan exceeds; "": none
  std::string advice;            // text about a change with which the plan would fit; "" if it fits
  std::optional<FitChange> change;
  std::optional<int64_t> longest_sequence;  // length of the longest sequence that fits; 0 if none does
};

// The change of configuration that the user should make, and the memory that a rank then needs. There is one
// recommendation for all planned stages together.
struct Recommendation {
  FitChange change;
  MemoryNeeds needs;
};

void print_plan_table(const PlanInputs& inputs, const std::vector<StagePlan>& plans,
                      const std::optional<Recommendation>& recommended);
// Prints one JSON object. If one stage is planned, the object itself has the stage's values. If several stages are
// planned, a list under "stages" has the values of each.
void print_plan_json(const PlanInputs& inputs, const std::vector<StagePlan>& plans,
                     const std::optional<Recommendation>& recommended);
void print_params(const ModelShapes& model, bool as_json);
// Prints for each stage and each unit how the unit's states are sharded, in which dtype, and on which tier.
void print_placements(const PlanInputs& inputs, bool as_json);
// The table and the JSON have one row per unit. If `sizes` is true, each row also has the unit's bytes, and in JSON the
// number of its elements, too.
void print_placement_table(const std::vector<PlannedUnit>& units, bool sizes);
nlohmann::ordered_json placements_as_json(const std::vector<PlannedUnit>& units, bool sizes);

}  // namespace zeroshard::cli
