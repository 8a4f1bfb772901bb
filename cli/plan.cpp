// `zeroshard plan`: predicts how many bytes each rank will hold, before anything is allocated.
#include "zeroshard/plan.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <map>
#include <memory>

#include "base/format.h"
#include "choices.h"
#include "commands.h"
#include "format.h"
#include "numbers.h"
#include "placement/offload_rules.h"
#include "plan/auto_offload.h"
#include "plan_cluster.h"
#include "plan_output.h"
#include "plan_recommend.h"
#include "plan_step.h"
#include "zeroshard/config.h"
#include "zeroshard/error.h"

namespace zeroshard::cli {
namespace {

constexpr int kLongestSequence = 1 << 30;

// The options that describe a micro-batch, on which the activations and the time of a step depend.
struct BatchArguments {
  std::optional<int> batch, sequence_length, sequence_parallel;
  bool checkpoint_activations = false, tile = false;
  RateArguments rates;
};

struct MemoryArguments {
  std::string device, device_overhead, host;
  bool gpu = false;  // true: plan for GPUs, even if the configuration puts states in files
  bool cpu = false;  // true: plan for ranks on the CPU, even if the configuration puts nothing in files
};

// The configuration file to read, the configuration file to write, and the directory of swap files that the written
// file names.
struct ConfigArguments {
  std::string path, write, nvme_path;
};

struct PlanArguments {
  std::string params, model, stage, dtype, optimizer;
  ConfigArguments config;
  MemoryArguments memory;
  RankArguments ranks;
  BatchArguments batch;
  bool json = false, list_params = false, placement = false;
};

const std::map<std::string, DType> kDTypes{
    {"bf16", DType::kBFloat16}, {"fp16", DType::kFloat16}, {"fp32", DType::kFloat32}};

// The number of moments for each element. "sgd" has no momentum, unlike "sgd-momentum".
const std::map<std::string, int> kOptimizerSlots{{"adamw", 2},        {"adam", 2}, {"lion", 1}, {"adagrad", 1},
                                                 {"sgd-momentum", 1}, {"sgd", 0},  {"muon", 2}};

std::string name_of_optimizer(const std::optional<OptimizerConfig>& optimizer) {
  if (!optimizer) return "adamw";
  switch (optimizer->type) {
    case OptimizerConfig::Type::kAdam:
      return "adam";
    case OptimizerConfig::Type::kAdamW:
      return "adamw";
    case OptimizerConfig::Type::kLion:
      return "lion";
    case OptimizerConfig::Type::kAdagrad:
      return "adagrad";
    case OptimizerConfig::Type::kSgd:
      return optimizer->momentum != 0 ? "sgd-momentum" : "sgd";
    case OptimizerConfig::Type::kMuon:
      return "muon";
  }
  return "?";
}

Tier tier_of_checkpoints(const Config& config, bool on_device) {
  using Activations = OffloadConfig::Activations;
  if (config.offload.activations == Activations::kNvme) return Tier::kFile;
  return on_device && config.offload.activations == Activations::kCpu ? Tier::kHost : Tier::kDevice;
}

void note_offload(const Config& config, bool for_cpu, PlanInputs& inputs) {
  using Device = OffloadDevice;
  const Device param = config.offload_param.device;
  const OffloadOptimizerConfig& optimizer = config.offload_optimizer;
  const bool stay = optimizer.device == Device::kNone || optimizer.ratio < 1;
  const bool have_left = param == Device::kCpu || param == Device::kNvme;
  if (inputs.options.on_device && have_left && stay && config.compute_dtype == DType::kFloat32)
    inputs.notes.push_back("fp32 parameters stay on the device with their optimizer states, whose masters they are");
  if (!inputs.options.on_device && !for_cpu)
    inputs.notes.push_back(
        std::string(asks_for_files(config) ? "files are asked for" : "ranks on GPUs refuse what is asked for") +
        ": planned for ranks on the CPU, whose memory is the host's; --gpu plans for GPUs");
  if (inputs.options.on_device && (param == Device::kCpu || optimizer.device == Device::kCpu))
    inputs.notes.push_back("planned for ranks on GPUs: on the CPU, a device's memory is the host's");
}

void read_config(const PlanArguments& arguments, const PlannedRanks& ranks, PlanInputs& inputs) {
  ConfigContext context;
  context.world_size = ranks.world_size;
  context.ranks_per_host = ranks.ranks_per_host;
  // Reads the file as if for the highest planned stage, because at a lower stage the parser drops offload that only a
  // higher stage has.
  if (!inputs.stages.empty()) context.stage = inputs.stages.back();
  if (inputs.model) context.hidden_size = inputs.model->hidden_size;
  const ParsedConfig parsed = load_config(arguments.config.path, context);
  const Config& config = parsed.config;
  const bool on_device = !arguments.memory.cpu && (arguments.memory.gpu || is_for_device(config));
  if (const std::string problem = refused_offload(config, on_device); !problem.empty())
    throw ConfigError(concat(arguments.config.path, ": ", problem));
  inputs.options = plan_options(config, on_device);
  inputs.config = config;
  if (inputs.stages.empty()) inputs.stages = {config.stage};
  inputs.batch.sequences = config.micro_batch_size;
  inputs.batch.sequence_parallel = config.sequence_parallel_size;
  inputs.batch.checkpoints = tier_of_checkpoints(config, inputs.options.on_device);
  inputs.optimizer_name = name_of_optimizer(config.optimizer);
  const MemoryLimits limits = configured_limits(config.offload, inputs.options.on_device);
  if (limits.device) inputs.limits.device = limits.device->bytes;
  if (limits.host) (inputs.options.on_device ? inputs.limits.host : inputs.limits.device) = limits.host->bytes;
  if (!config.optimizer) inputs.notes.push_back("the config has no optimizer; planned with adamw");
  for (const std::string& line : parsed.without_effect)
    if (line.starts_with("zero_optimization.offload_")) inputs.notes.push_back(line);
  if (!parsed.unknown.empty()) inputs.notes.push_back("the config has " + parsed.warning());
  note_offload(config, arguments.memory.cpu, inputs);
}

// Returns the bytes that `text` names. A number without a unit is in bytes. Throws ValueError for fewer than 10^6 bytes
// without a unit. No device has so few bytes, so the user has probably forgotten the unit.
double parse_device_bytes(const std::string& option, const std::string& text) {
  const double bytes = parse_bytes(text);
  const bool has_unit = text.find_first_not_of("0123456789.eE+-") != text.npos;
  if (bytes < 1e6 && !has_unit)
    throw ValueError(option + " is '" + text + "', and a number without a unit is in bytes: give a unit, such as " +
                     text + "GB");
  return bytes;
}

void read_stages(const std::string& text, PlanInputs& inputs) {
  if (text == "all") {
    inputs.stages = {0, 1, 2, 3};
  } else if (!text.empty()) {
    const std::map<std::string, int> stages{{"0", 0}, {"1", 1}, {"2", 2}, {"3", 3}, {"all", 0}};
    inputs.stages = {choose(stages, text, "--stage")};
  }
}

void read_activations(const BatchArguments& arguments, PlanInputs& inputs) {
  if (inputs.batch.checkpoints != Tier::kDevice && arguments.sequence_length && !arguments.checkpoint_activations)
    inputs.notes.push_back("zeroshard.offload.activations is for checkpointed layers: give --checkpoint-activations");
  if (!arguments.sequence_length) {
    if (arguments.batch || arguments.checkpoint_activations || arguments.sequence_parallel || arguments.tile)
      throw ValueError(
          "--batch, --sequence-parallel, --checkpoint-activations and --tile only change the activations, which are "
          "planned for a sequence length: give --sequence-length, too");
    return;
  }
  if (!inputs.model) throw ValueError("--sequence-length needs --model: a count of parameters has no activations");
  inputs.activations = {.batch = arguments.batch.value_or(inputs.batch.sequences),
                        .sequence_length = *arguments.sequence_length,
                        .sequence_parallel = arguments.sequence_parallel.value_or(inputs.batch.sequence_parallel),
                        .compute_dtype = inputs.options.compute_dtype,
                        .checkpointing = arguments.checkpoint_activations,
                        .checkpoints = inputs.batch.checkpoints,
                        .on_device = inputs.options.on_device,
                        .tiled = arguments.tile};
  if (const int64_t size = inputs.activations->sequence_parallel; inputs.ranks() % size != 0)
    throw ValueError(concat("--sequence-parallel ", size, " does not divide the ", inputs.ranks(), " ranks"));
}

PlanInputs read_inputs(const PlanArguments& arguments) {
  PlanInputs inputs;
  if (arguments.params.empty() == arguments.model.empty()) {
    throw ValueError("give either --params, a number of parameters, or --model, a directory or config.json");
  }
  if (!arguments.params.empty()) inputs.num_params = parse_param_count(arguments.params);
  if (!arguments.model.empty()) inputs.model = load_model_shapes(arguments.model);
  if (arguments.list_params) {
    if (!inputs.model) throw ValueError("--list-params needs --model");
    return inputs;
  }
  const PlannedRanks ranks = read_ranks(arguments.ranks);
  inputs.optimizer_name = "adamw";
  if (arguments.memory.gpu && arguments.memory.cpu) throw ValueError("--gpu and --cpu: give one of both");
  inputs.options.on_device = !arguments.memory.cpu;  // read_config() may change this
  read_stages(arguments.stage, inputs);
  if (!arguments.config.path.empty()) read_config(arguments, ranks, inputs);
  if (inputs.stages.empty()) inputs.stages = {0, 1, 2, 3};
  if (arguments.config.path.empty()) inputs.options.world_size = ranks.world_size;
  inputs.options.ranks_per_host = ranks.ranks_per_host;
  inputs.network = ranks.network;
  check_cluster(inputs);
  if (inputs.options.replicas > 1)
    inputs.notes.push_back(concat("planned for ", inputs.options.replicas, " replicas of the ",
                                  inputs.options.parts > 1 ? "parameters" : "states", ", each sharded over ",
                                  inputs.options.world_size, " rank(s) (zeroshard.mesh.shard)"));
  if (!arguments.dtype.empty()) inputs.options.compute_dtype = choose(kDTypes, arguments.dtype, "--dtype");
  if (!arguments.optimizer.empty()) {
    inputs.options.optimizer_slots = choose(kOptimizerSlots, arguments.optimizer, "--optimizer");
    inputs.optimizer_name = arguments.optimizer;
    inputs.options.matrix_dtype.reset();
    if (arguments.optimizer == "muon") inputs.options.matrix_dtype = DType::kFloat32;
  }
  read_activations(arguments.batch, inputs);
  inputs.rates = read_rates(arguments.batch.rates, inputs);
  if (!arguments.memory.device.empty())
    inputs.limits.device = parse_device_bytes("--device-memory", arguments.memory.device);
  if (!arguments.memory.host.empty())
    (inputs.options.on_device ? inputs.limits.host : inputs.limits.device) =
        parse_device_bytes("--host-memory", arguments.memory.host);
  if (!arguments.memory.device_overhead.empty())
    inputs.limits.device_overhead = parse_device_bytes("--device-overhead", arguments.memory.device_overhead);
  if (inputs.model) inputs.notes.insert(inputs.notes.end(), inputs.model->notes.begin(), inputs.model->notes.end());
  return inputs;
}

PlanOptions with_tiers_of(const Config& config, PlanOptions options) {
  const PlanOptions of_config = plan_options(config, options.on_device);
  options.parameter_tier = of_config.parameter_tier;
  options.gradient_tier = of_config.gradient_tier;
  options.gradients = of_config.gradients;
  options.state_tier = of_config.state_tier;
  options.state_share = of_config.state_share;
  return options;
}

MemoryLimits limits_of(const PlanInputs& inputs) {
  const auto limit = [](const std::optional<double>& bytes) {
    return bytes ? std::optional(MemoryLimit{*bytes, "as given"}) : std::nullopt;
  };
  if (!inputs.options.on_device) return {.device = {}, .host = limit(inputs.limits.device)};
  return {limit(inputs.limits.device), limit(inputs.limits.host)};
}

// Replaces each offload device that is "auto" in the configuration by the device that an engine would choose under the
// user's memory limits.
void choose_offload(PlanInputs& inputs) {
  if (!inputs.config || !has_auto_offload(*inputs.config)) return;
  const bool on_device = inputs.options.on_device;
  const std::vector<Config> choices = offload_choices(*inputs.config, on_device, /*may_use_files=*/true);
  const int stage = inputs.stages.size() == 1 ? inputs.stages.front() : inputs.config->stage;
  const auto needs = [&](const Config& choice) {
    return inputs.memory_needs(inputs.plan(with_tiers_of(choice, inputs.asked_at_stage(stage))));
  };
  const OffloadChoice choice = zeroshard::choose_offload(choices, limits_of(inputs), needs, on_device);
  inputs.options = with_tiers_of(choices[choice.index], inputs.options);
  const std::string of_stage = inputs.stages.size() == 1 ? "" : format("at stage %d ", stage);
  inputs.notes.push_back(of_stage + describe_choice(*inputs.config, choices[choice.index], choice));
  inputs.config = choices[choice.index];
}

// Returns the ratio of needed memory to its limit, for the device or the host, whichever ratio is larger. Memory
// without a limit counts as 0. The plan fits if the result is at most 1.
double share_of_limits(const MemoryNeeds& needs, const MemoryLimits& limits) {
  return std::max(limits.device ? needs.device / limits.device->bytes : 0,
                  limits.host ? needs.host / limits.host->bytes : 0);
}

// Returns the length of the longest sequence whose activations fit in addition to `bytes`, or 0 if no sequence fits.
// The result is at most kLongestSequence.
int64_t longest_sequence(PlanInputs inputs, const PlannedBytes& bytes, const MemoryLimits& limits, bool on_device) {
  const auto fits = [&](int64_t length) {
    inputs.activations->sequence_length = length;
    return passed_limits(inputs.memory_needs(bytes), limits, on_device).empty();
  };
  const int64_t none = inputs.activations->sequence_parallel - 1;  // not long enough, because each rank needs a token
  int64_t longest = none, too_long = kLongestSequence + 1;
  while (too_long - longest > 1) {
    const int64_t length = longest + (too_long - longest) / 2;
    (fits(length) ? longest : too_long) = length;
  }
  return longest == none ? 0 : longest;
}

std::vector<StagePlan> plan_stages(const PlanInputs& inputs) {
  std::vector<StagePlan> plans;
  const MemoryLimits limits = limits_of(inputs);
  const auto needs = [&](const PlanOptions& at) { return inputs.memory_needs(inputs.plan(at)); };
  for (const int stage : inputs.stages) {
    const PlanOptions at = inputs.asked_at_stage(stage);
    StagePlan plan{stage, inputs.plan(at), {}, "", "", {}, {}};
    plan.passed_limits = passed_limits(inputs.memory_needs(plan.bytes), limits, at.on_device);
    const FitSearch search{at, limits, needs, /*may_use_files=*/true};
    if (!plan.passed_limits.empty()) plan.change = smallest_change(search);
    if (!plan.passed_limits.empty()) plan.advice = advice_to_fit(search);
    if (limits.device || limits.host)
      plan.fit = check_fit(1, at, [&](const PlanOptions& other) { return share_of_limits(needs(other), limits); });
    if (inputs.activations && (limits.device || limits.host))
      plan.longest_sequence = longest_sequence(inputs, plan.bytes, limits, at.on_device);
    plans.push_back(plan);
  }
  return plans;
}

void run(const PlanArguments& arguments) {
  PlanInputs inputs = read_inputs(arguments);
  if (arguments.list_params) return print_params(*inputs.model, arguments.json);
  if (arguments.placement && !inputs.model) throw ValueError("--placement needs --model");
  choose_offload(inputs);
  if (arguments.placement) return print_placements(inputs, arguments.json);
  const std::vector<StagePlan> plans = plan_stages(inputs);
  const std::optional<Recommendation> recommended =
      inputs.options.replicas > 1 ? std::nullopt : recommend(inputs, plans);
  const ConfigArguments& config = arguments.config;
  if (config.write != "-")  // with "-", only the configuration goes to standard output
    arguments.json ? print_plan_json(inputs, plans, recommended) : print_plan_table(inputs, plans, recommended);
  if (!config.write.empty()) write_recommended(config.write, recommended, {inputs, config.path, config.nvme_path});
}

}  // namespace

void add_plan_command(CLI::App& app) {
  auto arguments = std::make_shared<PlanArguments>();  // shared, so that it lives as long as the callback
  CLI::App* plan = app.add_subcommand("plan", "Says how many bytes each rank will hold, before anything is allocated");
  plan->add_option("--params", arguments->params, "Number of parameters: 7.5e9, 7.5B, 350M");
  plan->add_option("--model", arguments->model, "Hugging Face model directory or config.json");
  add_rank_options(*plan, arguments->ranks);
  plan->add_option("--stage", arguments->stage, "0, 1, 2, 3 or all (default: that of --config, else all)");
  plan->add_option("--dtype", arguments->dtype, "bf16, fp16 or fp32 (default: that of --config, else bf16)");
  plan->add_option("--optimizer", arguments->optimizer,
                   "adamw, adam, lion, adagrad, muon, sgd-momentum or sgd (default: that of --config, else adamw)");
  plan->add_option("--config", arguments->config.path, "Training config, JSON as DeepSpeed's");
  plan->add_flag("--gpu", arguments->memory.gpu, "Plan for ranks on GPUs, also where --config asks for files");
  plan->add_flag("--cpu", arguments->memory.cpu, "Plan for ranks on the CPU");
  plan->add_option("--device-memory", arguments->memory.device, "Memory of one device: 24GB, 24e9, 22.5GiB");
  plan->add_option("--host-memory", arguments->memory.host,
                   "Memory of the host for each rank (both: default: what --config says under zeroshard.offload)");
  plan->add_option("--device-overhead", arguments->memory.device_overhead,
                   "What a GPU's context and the collectives' own buffers take, as measured: 1.2GB");
  add_int(*plan, "--sequence-length", {.min = 1, .max = kLongestSequence}, arguments->batch.sequence_length,
          "Tokens of a sequence: activations of the model are counted, too");
  add_int(*plan, "--sequence-parallel", {.min = 1, .max = 1 << 20}, arguments->batch.sequence_parallel,
          "Ranks that share a sequence, each with its piece (default: that of --config, else 1)");
  add_int(*plan, "--batch", {.min = 1, .max = 1 << 30}, arguments->batch.batch,
          "Sequences of a micro-batch (default: that of --config, else 1)");
  plan->add_flag("--checkpoint-activations", arguments->batch.checkpoint_activations,
                 "Each layer keeps its input alone, and is computed again in the backward pass");
  plan->add_flag("--tile", arguments->batch.tile,
                 "Loss and MLPs are computed in tiles of the sequence, as by zeroshard.tile(model)");
  add_rate_options(*plan, arguments->batch.rates);
  plan->add_flag("--json", arguments->json, "Print JSON");
  plan->add_option(
      "--write", arguments->config.write,
      "Write the recommended configuration, that of --config with its changes, to this file; -: print it and "
      "nothing else");
  plan->add_option("--nvme-path", arguments->config.nvme_path,
                   "With --write: the directory of states and parameters in files");
  plan->add_flag("--list-params", arguments->list_params, "List the model's parameters by unit instead of planning");
  plan->add_flag("--placement", arguments->placement, "Say of each unit where its state lies instead of planning");
  plan->callback([arguments] { run(*arguments); });
}

}  // namespace zeroshard::cli
