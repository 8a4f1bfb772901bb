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

// The results of `zeroshard plan`, and its two ways of printing them.
namespace zeroshard::cli {

// The parsed command line.
struct PlanInputs {
  std::optional<int64_t> num_params;  // or a model
  std::optional<ModelShapes> model;
  PlanOptions options;
  std::vector<int> stages;
  std::string optimizer_name;
  std::optional<double> device_bytes;            // of a rank on the CPU: of the host's memory
  std::optional<double> host_bytes;              // beside a device
  std::optional<double> device_overhead;         // of each device: its context and the collectives' own buffers
  int64_t micro_batch = 1;                       // sequences, as the config says
  int64_t sequence_parallel = 1;                 // ranks that share a sequence, as the config says
  std::optional<ActivationOptions> activations;  // of a model
  Tier checkpoints = Tier::kDevice;              // where activation checkpoints lie, as the config says
  std::vector<std::string> notes;
  std::optional<Config> config;
  std::optional<MachineRates> rates;  // asked for the time of a step

  int64_t numel() const { return model ? model->numel() : *num_params; }
  PlannedBytes plan(const PlanOptions& options_of) const {
    const PlanOptions at = with_effect(options_of);
    return model ? plan_model(*model, at) : plan_count(*num_params, at);
  }
  PlannedActivations planned_activations() const {
    return activations ? plan_activations(*model, *activations) : PlannedActivations();
  }
  double activation_bytes() const { return planned_activations().total(); }
  // What must fit on a device besides the total.
  double besides() const { return device_overhead.value_or(0) + activation_bytes(); }
  MemoryNeeds memory_needs(const PlannedBytes& planned) const {
    MemoryNeeds needs = zeroshard::memory_needs(planned, options.on_device);
    (options.on_device ? needs.device : needs.host) += besides();
    const PlannedActivations planned_inputs = planned_activations();
    needs.host += checkpoints == Tier::kHost ? planned_inputs.elsewhere : planned_inputs.on_the_way;
    needs.with_activations = activations.has_value();
    return needs;
  }
  // What must fit on a device.
  double needed(const PlannedBytes& planned) const {
    const MemoryNeeds needs = memory_needs(planned);
    return options.on_device ? needs.device : needs.host;
  }
  // As they are asked for: with what has no effect at this stage.
  PlanOptions asked_at_stage(int stage) const {
    PlanOptions at = options;
    at.stage = stage;
    return at;
  }
  PlanOptions at_stage(int stage) const { return with_effect(asked_at_stage(stage)); }
  // Nothing leaves the device at stage 0, and parameters do at stage 3 alone.
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
  std::string passed_limits;  // "" where it fits, or nothing says what there is
  std::string advice;         // what would fit instead
  std::optional<FitChange> change;
  std::optional<int64_t> longest_sequence;  // that fits; 0 if none does
};

// One configuration that fits, the same for all stages that were planned.
struct Recommendation {
  FitChange change;
  MemoryNeeds needs;
};

void print_plan_table(const PlanInputs& inputs, const std::vector<StagePlan>& plans,
                      const std::optional<Recommendation>& recommended);
// One stage: one object. Several: the same objects under "stages".
void print_plan_json(const PlanInputs& inputs, const std::vector<StagePlan>& plans,
                     const std::optional<Recommendation>& recommended);
void print_params(const ModelShapes& model, bool as_json);
// For each unit of the model and each stage, where its state lies.
void print_placements(const PlanInputs& inputs, bool as_json);
// One row each under a header, as a table or as JSON; `sizes`: with elements and bytes.
void print_placement_table(const std::vector<PlannedUnit>& units, bool sizes);
nlohmann::ordered_json placements_as_json(const std::vector<PlannedUnit>& units, bool sizes);

}  // namespace zeroshard::cli
