#include "train/describe_run.h"

#include <algorithm>
#include <iomanip>
#include <sstream>
#include <utility>

#include "base/check.h"
#include "memory/host_memory.h"
#include "placement/offload_rules.h"
#include "plan/auto_offload.h"
#include "plan/memory_limits.h"
#include "train/made_model.h"
#include "train/model_directory.h"
#include "train/prompts.h"
#include "train/run_data.h"
#include "train/text_data.h"
#include "zeroshard/nn.h"
#include "zeroshard/plan.h"
#include "zeroshard/tokenizer.h"

namespace zeroshard {
namespace {

ModelShapes shapes_of(const CausalLM& model, const Config& config) {
  ModelShapes shapes;
  ModuleUnits units(model, config.unit_classes);
  for (const UnitDefinition& unit : units.definitions()) {
    shapes.units.push_back({unit.name, {}});
    for (const ParamDefinition& param : unit.params) shapes.units.back().params.push_back({param.names, param.shape});
  }
  return shapes;
}

void describe_model(std::ostream& out, const TrainOptions& options, const CausalLM& model) {
  int64_t all = 0, trained = 0;
  for (const at::Tensor& parameter : model.parameters()) {
    all += parameter.numel();
    trained += parameter.requires_grad() ? parameter.numel() : 0;
  }
  out << "model       " << options.model << (options.from_scratch ? ", from scratch" : "") << ": " << all
      << " parameters, " << trained << " trained\n";
}

void describe_data(std::ostream& out, Dataset& data, const char* what) {
  out << what << data.documents() << " documents, " << data.tokens() << " tokens, " << data.rows_in_epoch(0)
      << " rows an epoch\n";
}

void describe_steps(std::ostream& out, const TrainConfig& config, Dataset& training, int64_t steps) {
  const int64_t batch = config.engine.config.train_batch_size;
  const auto rows = static_cast<double>(steps * batch);
  out << "steps       " << steps << " of " << batch << " rows of " << config.train.rows.length << " tokens";
  if (const int ranks = config.engine.config.sequence_parallel_size; ranks > 1)
    out << ", each shared by " << ranks << " ranks";
  out << ": " << rows / static_cast<double>(training.rows_in_epoch(0)) << " epochs\n";
}

// Writes the stage, dtype and ranks of the engine and the planned memory of a rank to `out`. The plan counts frozen
// parameters as if they were trained, so the numbers are upper limits.
void describe_memory(std::ostream& out, const CausalLM& model, const Config& config, bool on_device) {
  const PlannedBytes bytes = plan_model(shapes_of(model, config), plan_options(config, on_device));
  out << "engine      stage " << config.stage << ", " << name_of(config.compute_dtype) << ", " << config.world_size
      << (config.world_size == 1 ? " rank\n" : " ranks\n");
  out << "memory      " << bytes.total() / 1e6 << " MB for each rank, activations aside (";
  const std::pair<const char*, double> parts[] = {{"parameters ", bytes.parameters},
                                                  {", gradients ", bytes.gradients},
                                                  {", master weights ", bytes.master_weights},
                                                  {", moments ", bytes.moments},
                                                  {", gather ring ", bytes.gather_ring},
                                                  {", reduce ring ", bytes.reduce_ring},
                                                  {", swap ", bytes.swap}};
  for (const auto& [name, value] : parts) out << name << value / 1e6;
  out << ")";
  if (bytes.host.total() > 0) out << ", and " << bytes.host.total() / 1e6 << " MB of host memory";
  if (bytes.file.total() > 0) out << ", and " << bytes.file.total() / 1e6 << " MB in files";
  if (has_auto_offload(config)) out << ", or less: offload is \"auto\"";
  out << "\n";
}

bool all_trained(const CausalLM& model) {
  return std::ranges::all_of(model.parameters(), [](const auto& each) { return each.requires_grad(); });
}

MemoryLimits limits_of(const Config& config, bool on_device, int ranks_of_host) {
  MemoryLimits limits = configured_limits(config.offload, on_device);
  if (!limits.host) limits.host = limit_of_host(read_host_memory(), ranks_of_host);
  return limits;
}

// If the device of an offload is "auto", returns `config` with the engine's choice as the device, and writes the choice
// to `out`. Otherwise returns `config` unchanged and writes nothing.
Config with_offload_chosen(std::ostream& out, const CausalLM& model, const Config& config, bool on_device,
                           const MemoryLimits& limits) {
  if (!has_auto_offload(config)) return config;
  const ModelShapes shapes = shapes_of(model, config);
  const auto needs = [&](const Config& choice) {
    return memory_needs(plan_model(shapes, plan_options(choice, on_device)), on_device);
  };
  const std::vector<Config> choices = offload_choices(config, on_device, /*may_use_files=*/true);
  const OffloadChoice choice = choose_offload(choices, limits, needs, on_device);
  out << "offload     " << (all_trained(model) ? "" : "frozen parameters counted as if they were trained: ")
      << describe_choice(config, choices[choice.index], choice) << "\n";
  return choices[choice.index];
}

// Writes to `out` whether the run fits into the memory limits that the engine would check before it allocates.
void describe_limits(std::ostream& out, const CausalLM& model, const Config& config, bool on_device,
                     const MemoryLimits& limits) {
  const ModelShapes shapes = shapes_of(model, config);
  const auto needs = [&](const PlanOptions& options) { return memory_needs(plan_model(shapes, options), on_device); };
  const PlanOptions options = plan_options(config, on_device);
  const std::string passed = passed_limits(needs(options), limits, on_device);
  out << "limits      ";
  if (passed.empty()) {
    out << "fits";
    if (limits.device) out << ", device: " << limits.device->bytes / 1e6 << " MB (" << limits.device->source << ")";
    if (limits.host) out << ", host: " << limits.host->bytes / 1e6 << " MB (" << limits.host->source << ")";
  } else {
    out << (all_trained(model) ? "does not fit: " : "may not fit, frozen parameters counted as if they were trained: ")
        << passed << ". " << advice_to_fit({options, limits, needs, /*may_use_files=*/true});
  }
  out << "\n";
}

void describe_results(std::ostream& out, const TrainOptions& options) {
  if (const std::string links = links_out_of(options.model); !links.empty())
    out << "warning     links lead out of " << options.model << ", and what they name will be in " << options.output
        << ": " << links << "\n";
  out << "results     " << options.output
      << ": the trained model at the end, and metrics (metrics.jsonl, metrics.csv)\n"
      << "checkpoints " << options.checkpoints << ": ";
  if (options.checkpoint_every > 0) out << "every " << options.checkpoint_every << " steps, and ";
  out << "at the end\n";
}

void describe_row(std::ostream& out, const TrainOptions& options, Dataset& data) {
  constexpr size_t kShown = 16;
  const TokenRow row = data.row(0);
  out << "first row   ids";
  for (size_t i = 0; i < row.ids.size() && i < kShown; ++i) out << ' ' << row.ids[i];
  out << (row.ids.size() > kShown ? " ...\n" : "\n");
  try {
    out << load_tokenizer(options.model)->decode(row.ids, /*skip_special=*/false) << '\n';
  } catch (const Error&) {  // the directory has no usable tokenizer, and token files need none
  }
}

}  // namespace

std::string describe_plan(const TrainConfig& config, const CausalLM& model, Dataset& training, Dataset* validation,
                          int64_t steps, bool on_device) {
  std::ostringstream out;
  out << std::fixed << std::setprecision(1);
  describe_model(out, config.train, model);
  describe_data(out, training, "training    ");
  if (validation != nullptr) describe_data(out, *validation, "validation  ");
  describe_steps(out, config, training, steps);
  describe_memory(out, model, config.engine.config, on_device);
  describe_results(out, config.train);
  return out.str();
}

std::string describe_run(const TrainConfig& config, bool on_device, int ranks_of_host) {
  TrainConfig own = config;
  TrainOptions& options = own.train;
  check_output(options.model, options.output, options.checkpoints);
  tokenize_texts(options);
  const MadeModel made = make_model(own);
  values_of(options, *made.model);  // called because it throws for weights that are missing or have another shape
  const std::unique_ptr<Dataset> training = training_data(options, *made.model);
  const std::unique_ptr<Dataset> validation = validation_data(options, *made.model);
  encode_prompts(options, *made.model);  // called because it throws for prompts that cannot be continued
  const int64_t batch = own.engine.config.train_batch_size, steps = total_steps(options, *training, batch);
  const std::string warning = check_targets(options, batch, steps, *training, validation.get());
  std::ostringstream out;
  out << std::fixed << std::setprecision(1);
  Config& engine = own.engine.config;
  if (const std::string problem = refused_offload(engine, on_device); !problem.empty()) throw ConfigError(problem);
  const MemoryLimits limits = limits_of(engine, on_device, ranks_of_host);
  engine = with_offload_chosen(out, *made.model, engine, on_device, limits);
  out << describe_plan(own, *made.model, *training, validation.get(), steps, on_device);
  describe_limits(out, *made.model, engine, on_device, limits);
  if (!warning.empty()) out << "warning     " << warning << "\n";
  describe_row(out, options, *training);
  return out.str();
}

}  // namespace zeroshard
