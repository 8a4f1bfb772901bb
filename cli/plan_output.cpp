#include "plan_output.h"

#include <algorithm>
#include <cmath>
#include <iostream>
#include <nlohmann/json.hpp>

#include "base/format.h"
#include "format.h"
#include "plan_cluster.h"
#include "plan_step.h"

namespace zeroshard::cli {
namespace {

using Json = nlohmann::ordered_json;

// Returns `bytes` in units of `unit` bytes, as text. Numbers below 0.1 have three significant digits, because 0.00
// would be misleading for small models. Returns "-" for 0.
std::string gigabytes(double bytes, double unit = 1e9) {
  const double value = bytes / unit;
  if (value == 0) return "-";
  return format(value >= 100 ? "%.1f" : value >= 0.1 ? "%.2f" : "%.3g", value);
}

std::string not_counted(const PlanInputs& inputs) {
  if (!inputs.activations)
    return "Not counted: activations (--sequence-length counts them), temporary memory of operators, LibTorch and the "
           "driver.";
  return "Not counted: temporary memory of operators, LibTorch and the driver.";
}

// Returns text about the micro-batch whose activations are counted.
std::string describe_activations(const ActivationOptions& options) {
  const std::string shared = options.sequence_parallel == 1
                                 ? ""
                                 : concat(", of which each of ", options.sequence_parallel, " ranks has a piece");
  return format("Activations: %lld x %lld tokens%s, %s%s. As transformers' model keeps them in eager mode.",
                static_cast<long long>(options.batch), static_cast<long long>(options.sequence_length), shared.c_str(),
                !options.checkpointing                 ? "without checkpointing"
                : options.checkpoints == Tier::kDevice ? "each layer checkpointed"
                                                       : "each layer checkpointed, its input elsewhere",
                options.tiled ? ", loss and MLPs in tiles" : "");
}

bool has_swap(const PlanInputs& inputs) {
  const PlanOptions& options = inputs.options;
  if (options.on_device) return false;  // with a device, print_tier() prints the host's buffers for swap files
  return options.state_tier == Tier::kFile || options.parameter_tier == Tier::kFile || options.activations_in_files;
}

// Returns the bytes of host memory that a background checkpoint needs, at the planned stage that needs most.
double staging(const PlanInputs& inputs) {
  double bytes = 0;
  for (const int stage : inputs.stages) {
    const PlanOptions at = inputs.at_stage(stage);
    bytes = std::max(bytes, inputs.model ? checkpoint_staging_bytes(*inputs.model, at)
                                         : checkpoint_staging_bytes(double(inputs.numel()), at));
  }
  return bytes;
}

// Returns text about the bytes that one parameter takes before sharding (16 for bf16 with Adam). The text says how many
// of them are weights, gradients, master weights and moments. It also says how many bytes are added if gradients of
// several micro-batches are accumulated.
std::string convention(const PlanInputs& inputs) {
  PlanOptions whole = inputs.at_stage(0);
  whole.world_size = 1;
  PlanOptions plain = whole;  // gradients are reduced in place, in the dtype in which ranks send them
  plain.grad_accumulation_steps = 1;
  plain.grad_dtype.reset();
  const PlannedBytes bytes = plan_count(1, plain);
  std::string line =
      format("%.4g bytes per parameter before sharding: %s weights %.0f + gradients %.0f", bytes.model_states(),
             std::string(name_of(whole.compute_dtype)).c_str(), bytes.parameters, bytes.gradients);
  if (bytes.master_weights > 0) line += format(" + fp32 master weights %.0f", bytes.master_weights);
  line += format(" + moments %.4g.", bytes.moments);
  if (const double more = plan_count(1, whole).gradients - bytes.gradients; more > 0) {
    line += format(
        " Reduced gradients kept beside those on the wire hold %.0f more at stage 0, %.0f/N at stage 1; "
        "at stages 2 and 3 gradients are these %.0f/N alone.",
        more, more, more);
  } else {
    line += " Accumulating micro-batches in fp32 would add 4 at stage 0, 4/N at stage 1";
    line += bytes.gradients == 2 ? ", 2/N at stages 2 and 3." : ".";
  }
  return line;
}

// Returns the needed memory and its limits as text, such as "17.50 GB of the 24.00 GB of a device, and 122.0 GB of the
// 2000.0 GB of the host". Leaves out memory without a limit.
std::string describe_needs(const PlanInputs& inputs, const MemoryNeeds& needs) {
  const auto of_limit = [](double need, double limit) {
    const std::string needed = need > 0 ? gigabytes(need) : "0", allowed = gigabytes(limit);
    return need > limit ? format("%s GB, %.2f x the %s GB", needed.c_str(), need / limit, allowed.c_str())
                        : format("%s GB of the %s GB", needed.c_str(), allowed.c_str());
  };
  const bool on_device = inputs.options.on_device;
  std::string text;
  if (inputs.limits.device)
    text = of_limit(on_device ? needs.device : needs.host, *inputs.limits.device) + (on_device ? " of a device" : "");
  if (on_device && inputs.limits.host && needs.host > 0)
    text += (text.empty() ? "" : ", and ") + of_limit(needs.host, *inputs.limits.host) + " of the host";
  return text;
}

std::string describe_fit(const PlanInputs& inputs, const StagePlan& plan) {
  const FitReport& fit = *plan.fit;
  std::string line = format("stage %d, %d ranks: ", plan.stage, inputs.ranks());
  line += fit.fits ? "fits: needs " : "does not fit: needs ";
  line += describe_needs(inputs, inputs.memory_needs(plan.bytes));
  if (inputs.options.replicas > 1) return line;  // `fit` counts the ranks of one replica only
  if (fit.min_world_size) {
    line += format("; smallest world size that fits at this stage: %d", *fit.min_world_size);
  } else {
    line += "; no world size fits at this stage";
  }
  return line;
}

std::string describe_advice(const PlanInputs& inputs, const FitReport& fit,
                            const std::optional<Recommendation>& recommended) {
  if (inputs.options.replicas > 1)
    return fit.fits ? "" : "Larger replicas (zeroshard.mesh.shard), or one for all ranks, need less on each rank.";
  if (!recommended) return "No stage, offload or number of ranks fits: allow more memory, or train a smaller model.";
  const FitChange& change = recommended->change;
  if (change.keys.empty() && change.options.world_size == inputs.options.world_size)
    return format("Lowest stage that fits on %d ranks: %d", inputs.options.world_size, *fit.lowest_stage);
  return "Recommended: " + describe(change, inputs.options.world_size) + ": each rank needs " +
         describe_needs(inputs, recommended->needs) + ". --write FILE writes it.";
}

// Returns a sentence about the memory that a GPU needs in addition to the totals of the table.
std::string describe_overhead(const PlanInputs& inputs) {
  if (!inputs.limits.device_overhead)
    return "Not counted on a GPU: the device's context and the collectives' own buffers (--device-overhead adds them).";
  return format("The device's context and the collectives' own buffers: %s GB, as given; in no total.",
                gigabytes(*inputs.limits.device_overhead).c_str());
}

void print_row(const char* name, const std::vector<StagePlan>& plans, const auto& value, double unit = 1e9) {
  std::cout << format("  %-18s", name);
  for (const StagePlan& plan : plans) std::cout << format("%12s", gigabytes(value(plan.bytes), unit).c_str());
  std::cout << "\n";
}

// Prints the bytes that each plan keeps on `tier`, a tier other than the device. The name of each row begins with
// `name`. Prints nothing if no plan uses that tier.
void print_tier(const std::string& name, const std::vector<StagePlan>& plans, PlannedTier PlannedBytes::*tier) {
  const auto is_used = [tier](const StagePlan& plan) { return (plan.bytes.*tier).total() > 0; };
  if (std::none_of(plans.begin(), plans.end(), is_used)) return;
  const auto print = [&](const char* what, double PlannedTier::*part) {
    print_row((name + ": " + what).c_str(), plans, [&](const PlannedBytes& bytes) { return bytes.*tier.*part; });
  };
  print("parameters", &PlannedTier::parameters);
  print("gradients", &PlannedTier::gradients);
  print("masters", &PlannedTier::master_weights);
  print("moments", &PlannedTier::moments);
  print("buffers", &PlannedTier::buffers);
  print_row((name + ": total").c_str(), plans, [&](const PlannedBytes& bytes) { return (bytes.*tier).total(); });
}

// Returns the end of the line that describe_fit() begins, such as "; the longest sequence that fits has 12345 tokens".
// Returns "" if the plan's longest_sequence is unset.
std::string describe_longest(const StagePlan& plan) {
  if (!plan.longest_sequence) return "";
  if (*plan.longest_sequence == 0) return "; no sequence fits";
  return format("; the longest sequence that fits has %lld tokens", static_cast<long long>(*plan.longest_sequence));
}

}  // namespace

void print_plan_table(const PlanInputs& inputs, const std::vector<StagePlan>& plans,
                      const std::optional<Recommendation>& recommended) {
  const int64_t numel = inputs.numel();
  std::cout << format("%s%lld parameters (%.4g B), %d ranks, %s, %s\n\n",
                      inputs.model ? (inputs.model->model_type + ": ").c_str() : "", static_cast<long long>(numel),
                      double(numel) / 1e9, inputs.ranks(), std::string(name_of(inputs.options.compute_dtype)).c_str(),
                      inputs.optimizer_name.c_str());
  std::cout << format("%-20s", "GB (10^9) per rank");
  for (const StagePlan& plan : plans) std::cout << format("%12s", format("stage %d", plan.stage).c_str());
  std::cout << "\n";
  print_row("parameters", plans, [](const PlannedBytes& bytes) { return bytes.parameters; });
  print_row("gradients", plans, [](const PlannedBytes& bytes) { return bytes.gradients; });
  print_row("master weights", plans, [](const PlannedBytes& bytes) { return bytes.master_weights; });
  print_row("moments", plans, [](const PlannedBytes& bytes) { return bytes.moments; });
  print_row("model states", plans, [](const PlannedBytes& bytes) { return bytes.model_states(); });
  if (inputs.model) {
    print_row("gather ring", plans, [](const PlannedBytes& bytes) { return bytes.gather_ring; });
    print_row("reduce ring", plans, [](const PlannedBytes& bytes) { return bytes.reduce_ring; });
  }
  if (has_swap(inputs)) print_row("swap", plans, [](const PlannedBytes& bytes) { return bytes.swap; });
  print_row("total", plans, [](const PlannedBytes& bytes) { return bytes.total(); });
  print_row(
      "total in GiB", plans, [](const PlannedBytes& bytes) { return bytes.total(); }, 1024. * 1024 * 1024);
  if (inputs.activations) {
    const double bytes = inputs.activation_bytes();
    print_row("activations", plans, [bytes](const PlannedBytes&) { return bytes; });
    print_row("with activations", plans, [bytes](const PlannedBytes& of) { return of.total() + bytes; });
  }
  print_tier("host", plans, &PlannedBytes::host);
  print_tier("file", plans, &PlannedBytes::file);
  if (const double bytes = inputs.planned_activations().elsewhere; bytes > 0) {
    const std::string name = inputs.batch.checkpoints == Tier::kFile ? "file: activations" : "host: activations";
    print_row(name.c_str(), plans, [bytes](const PlannedBytes&) { return bytes; });
  }
  if (const double bytes = inputs.planned_activations().on_the_way; bytes > 0)
    print_row("host: on their way", plans, [bytes](const PlannedBytes&) { return bytes; });
  if (inputs.model) {
    print_row("GPU: temporaries", plans, [](const PlannedBytes& bytes) { return bytes.temporaries; });
    print_row("GPU: start at most", plans, [](const PlannedBytes& bytes) { return bytes.init_peak; });
  }
  std::cout << "\n" << convention(inputs) << "\n" << not_counted(inputs) << "\n" << describe_overhead(inputs) << "\n";
  if (inputs.activations) std::cout << describe_activations(*inputs.activations) << "\n";
  if (inputs.model) {
    std::cout << format("Initialisation from a model on the host holds at most one full unit in fp32 more: %s GB.\n",
                        gigabytes(init_extra_bytes(*inputs.model, inputs.options)).c_str());
  } else {
    std::cout << "A count has no layers: padding and the rings of stages 2 and 3 are left out; --model counts them.\n";
  }
  const PlanOptions& options = inputs.options;
  const bool is_split = options.on_device && options.state_tier == Tier::kFile && options.state_share < 1;
  if (is_split && plans.back().bytes.file.total() > 0) {
    std::cout << "Checkpoints of states in files and on the device are written before save_checkpoint returns.\n";
  } else if (staging(inputs) == 0) {
    std::cout << "Checkpoints in the background read states from their files, and hold no copy.\n";
  } else {
    std::cout << format("Checkpoints in the background hold %s GB of host memory more from the first save on.\n",
                        gigabytes(staging(inputs)).c_str());
  }
  for (const std::string& note : inputs.notes) std::cout << "Note: " << note << ".\n";
  if (inputs.options.ranks_per_host > 0) {
    std::cout << "\n";
    for (const StagePlan& plan : plans) std::cout << describe_network(inputs, inputs.at_stage(plan.stage));
  }
  if (inputs.rates) {
    std::cout << "\n";
    for (const StagePlan& plan : plans) std::cout << describe_step(inputs, inputs.at_stage(plan.stage));
  }
  if (!inputs.limits.device && !inputs.limits.host) return;
  std::cout << "\n";
  for (const StagePlan& plan : plans) std::cout << describe_fit(inputs, plan) << describe_longest(plan) << "\n";
  std::cout << describe_advice(inputs, *plans.front().fit, recommended) << "\n";
}

namespace {

// Returns `value` as a JSON integer if it is whole, else as a floating-point number.
Json number(double value) {
  return value == std::floor(value) ? Json(int64_t(value)) : Json(value);
}

Json to_json(const PlanInputs& inputs, const StagePlan& plan) {
  const PlannedBytes& bytes = plan.bytes;
  Json json{{"stage", plan.stage},
            {"model_states_bytes_per_rank", number(bytes.model_states())},
            {"total_bytes_per_rank", number(bytes.total())},
            {"breakdown",
             {{"parameters", number(bytes.parameters)},
              {"gradients", number(bytes.gradients)},
              {"optimizer_states", number(bytes.master_weights + bytes.moments)},
              {"master_weights", number(bytes.master_weights)},
              {"moments", number(bytes.moments)}}}};
  for (const auto& [name, tier] : {std::pair{"host", &bytes.host}, {"file", &bytes.file}}) {
    if (tier->total() == 0) continue;
    json[name] = {{"total_bytes", number(tier->total())}, {"parameters", number(tier->parameters)},
                  {"gradients", number(tier->gradients)}, {"master_weights", number(tier->master_weights)},
                  {"moments", number(tier->moments)},     {"buffers", number(tier->buffers)}};
  }
  if (inputs.model) {
    json["breakdown"]["gather_ring"] = number(bytes.gather_ring);
    json["breakdown"]["reduce_ring"] = number(bytes.reduce_ring);
    json["device"] = {{"temporary_bytes", number(bytes.temporaries)},
                      {"initialisation_peak_bytes", number(bytes.init_peak)}};
  }
  if (has_swap(inputs)) json["breakdown"]["swap"] = number(plan.bytes.swap);
  if (plan.fit) {
    const auto or_null = [](const std::optional<int>& value) { return value ? Json(*value) : Json(); };
    json["fit"] = {{"device_memory_bytes", inputs.limits.device ? number(*inputs.limits.device) : Json()},
                   {"fits", plan.fit->fits},
                   {"ratio", plan.fit->ratio},
                   {"smallest_world_size", or_null(plan.fit->min_world_size)},
                   {"smallest_world_size_stage_3", or_null(plan.fit->min_world_size_stage_3)},
                   {"lowest_stage", or_null(plan.fit->lowest_stage)}};
  }
  if (inputs.options.ranks_per_host > 0) json["network"] = network_as_json(inputs, inputs.at_stage(plan.stage));
  if (inputs.rates) json["step"] = step_as_json(inputs, inputs.at_stage(plan.stage));
  if (inputs.limits.device || inputs.limits.host) {
    json["limits"] = {{"fits", plan.passed_limits.empty()}};
    if (inputs.limits.host) json["limits"]["host_memory_bytes"] = number(*inputs.limits.host);
    if (plan.longest_sequence) json["limits"]["longest_sequence"] = *plan.longest_sequence;
    if (!plan.passed_limits.empty()) {
      json["limits"]["problem"] = plan.passed_limits;
      json["limits"]["advice"] = plan.advice;
    }
  }
  return json;
}

Json to_json(const Recommendation& recommended) {
  Json changes = Json::object();
  for (const KeyValue& key : recommended.change.keys) changes[key.path] = Json::parse(key.value);
  return {{"stage", recommended.change.options.stage},
          {"world_size", recommended.change.options.world_size},
          {"changes", changes},
          {"device_bytes_per_rank", number(recommended.needs.device)},
          {"host_bytes_per_rank", number(recommended.needs.host)}};
}

}  // namespace

void print_plan_json(const PlanInputs& inputs, const std::vector<StagePlan>& plans,
                     const std::optional<Recommendation>& recommended) {
  Json json{{"params", inputs.numel()},
            {"world_size", inputs.ranks()},
            {"dtype", std::string(name_of(inputs.options.compute_dtype))},
            {"optimizer", inputs.optimizer_name}};
  if (inputs.model) {
    json["model_type"] = inputs.model->model_type;
    json["initialisation_extra_bytes"] = number(init_extra_bytes(*inputs.model, inputs.options));
  }
  if (const int here = inputs.options.ranks_per_host; here > 0)
    json["cluster"] = {{"hosts", inputs.ranks() / here}, {"ranks_per_host", here}};
  json["checkpoint_staging_host_bytes"] = number(staging(inputs));
  json["not_counted"] = {"operator temporaries", "LibTorch and driver"};
  if (inputs.activations) {
    const PlannedActivations planned = inputs.planned_activations();
    json["activations"] = {{"batch", inputs.activations->batch},
                           {"sequence_length", inputs.activations->sequence_length},
                           {"sequence_parallel", inputs.activations->sequence_parallel},
                           {"checkpointing", inputs.activations->checkpointing},
                           {"tiled", inputs.activations->tiled},
                           {"layers_bytes", number(planned.layers)},
                           {"ends_bytes", number(planned.ends)},
                           {"at_most_besides_bytes", number(planned.at_most)},
                           {"total_bytes", number(planned.total())}};
    if (planned.elsewhere > 0)
      json["activations"][inputs.batch.checkpoints == Tier::kFile ? "file_bytes" : "host_bytes"] =
          number(planned.elsewhere);
    if (planned.on_the_way > 0) json["activations"]["host_bytes"] = number(planned.on_the_way);
  } else {
    json["not_counted"].insert(json["not_counted"].begin(), "activations");
  }
  if (inputs.limits.device_overhead) {
    json["device_overhead_bytes"] = number(*inputs.limits.device_overhead);
  } else {
    json["not_counted"].push_back("the device's context and the collectives' own buffers");
  }
  if (const std::string left_out = uncounted_communication(inputs.options); inputs.rates && !left_out.empty())
    json["not_counted"].push_back(left_out);
  if (!inputs.model) json["not_counted"].insert(json["not_counted"].end(), {"padding", "gather ring", "reduce ring"});
  json["notes"] = inputs.notes;
  if (plans.size() == 1) {
    json.update(to_json(inputs, plans.front()));
  } else {
    for (const StagePlan& plan : plans) json["stages"].push_back(to_json(inputs, plan));
  }
  if (recommended) json["recommended"] = to_json(*recommended);
  std::cout << json_text(json);
}

void print_params(const ModelShapes& model, bool as_json) {
  Json json{{"model_type", model.model_type}, {"params", model.numel()}, {"units", Json::array()}};
  for (const UnitShapes& unit : model.units) {
    if (!as_json) std::cout << unit.name << "\n";
    Json params = Json::array();
    for (const ParamShape& param : unit.params) {
      params.push_back({{"names", param.names}, {"shape", param.shape}});
      if (as_json) continue;
      std::cout << "  ";
      for (const std::string& name : param.names) std::cout << name << " ";
      std::cout << Json(param.shape).dump() << "\n";
    }
    json["units"].push_back({{"name", unit.name}, {"params", std::move(params)}});
  }
  if (as_json) std::cout << json_text(json);
}

Json placements_as_json(const std::vector<PlannedUnit>& units, bool sizes) {
  Json rows = Json::array();
  for (const PlannedUnit& unit : units) {
    Json row{{"unit", unit.name}};
    if (sizes) row["params"] = unit.numel;
    row.update({{"parameters", unit.parameters},
                {"gradients", unit.gradients},
                {"master_weights", unit.master_weights},
                {"moments", unit.moments}});
    if (sizes) row["bytes_per_rank"] = number(unit.bytes);
    rows.push_back(std::move(row));
  }
  return rows;
}

void print_placement_table(const std::vector<PlannedUnit>& units, bool sizes) {
  int width = 4, where = 16;
  for (const PlannedUnit& unit : units) {
    width = std::max(width, int(unit.name.size()));
    for (const std::string* cell : {&unit.gradients, &unit.master_weights, &unit.moments})
      where = std::max(where, int(cell->size()));
  }
  const auto print = [&](const std::string& name, const std::string& parameters, const std::string& gradients,
                         const std::string& masters, const std::string& moments, const std::string& size) {
    std::cout << format("  %-*s  %-16s  %-*s  %-*s  ", width, name.c_str(), parameters.c_str(), where,
                        gradients.c_str(), where, masters.c_str())
              << (sizes ? format("%-*s  %s\n", std::max(where, 18), moments.c_str(), size.c_str()) : moments + "\n");
  };
  print("unit", "parameters", "gradients", "master weights", "moments", "GB per rank");
  for (const PlannedUnit& unit : units)
    print(unit.name, unit.parameters, unit.gradients, unit.master_weights, unit.moments, gigabytes(unit.bytes));
}

void print_placements(const PlanInputs& inputs, bool as_json) {
  Json stages = Json::array();
  for (const int stage : inputs.stages) {
    const std::vector<PlannedUnit> units = plan_units(*inputs.model, inputs.at_stage(stage));
    stages.push_back({{"stage", stage}, {"units", placements_as_json(units, /*sizes=*/true)}});
    if (as_json) continue;
    std::cout << format("stage %d, %d ranks\n", stage, inputs.ranks());
    print_placement_table(units, /*sizes=*/true);
  }
  if (as_json) std::cout << json_text(Json{{"world_size", inputs.ranks()}, {"stages", stages}});
}

}  // namespace zeroshard::cli
