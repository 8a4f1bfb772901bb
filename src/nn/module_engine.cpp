#include <torch/version.h>

#include "base/check.h"
#include "comm/comm.h"
#include "optim/lr_schedule.h"
#include "zeroshard/engine.h"
#include "zeroshard/nn.h"
#include "zeroshard/version.h"
#include "zeroshard/world.h"

namespace zeroshard {
namespace {

EngineOptions engine_options(const torch::nn::Module& model, const ParsedConfig& parsed, World& world,
                             const ParameterValues& values) {
  EngineOptions options;
  options.config = parsed.config;
  options.device = world.device();
  options.observer = world.observer();
  if (world.sequence()) {
    options.on_failed_backward = [comm = world.sequence(), rank = world.rank()](const std::string& reason) {
      comm->abort(concat("the backward failed on rank ", rank, ": ", reason));
    };
  }
  options.agreement = {{"versions", {{"zeroshard", kVersion}, {"torch", TORCH_VERSION}}}, {"configuration", {}}};
  for (const ConfigValue& value : parsed.values) options.agreement.back().second.emplace_back(value.path, value.value);
  options.agreement.push_back({"values of the parameters", {{"source", values.identity}}});
  for (const auto& item : model.named_buffers())
    if (item.value().defined()) options.buffers.emplace_back(item.key(), item.value());
  return options;
}

// Throws ConfigError if one of the keys below is set to anything but false or null. Only engines in Python support
// these keys, and training without them would give other results.
void refuse_keys_of_python(const ParsedConfig& parsed) {
  for (const auto& [path, value, origin] : parsed.values) {
    const bool is_one = path == "torch_autocast.enabled" || path == "data_types.buffer_dtype" ||
                        path == "data_types.keep_in_fp32_modules";
    if (is_one && value != "false" && value != "null")
      throw ConfigError(
          concat(path, " = ", value, ": it is for engines in Python. Here the caller casts: leave it out"));
  }
}

const OptimizerConfig& optimizer_of(const ParsedConfig& parsed) {
  if (parsed.config.optimizer && parsed.config.optimizer->type == OptimizerConfig::Type::kMuon)
    throw ConfigError("optimizer.type = \"Muon\" needs an engine in Python: choose AdamW here");
  if (parsed.config.optimizer) return *parsed.config.optimizer;
  throw ConfigError(R"(the key optimizer is missing: add "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}})");
}

std::vector<UnitDefinition> with_values(std::vector<UnitDefinition> units, const ParameterValues& values) {
  for (UnitDefinition& unit : units) unit.values = values.read;
  return units;
}

void check_tensors(const torch::nn::Module& model, at::Device device, const ParameterValues& values) {
  for (const auto& item : model.named_parameters()) {
    const bool has_memory = item.value().unsafeGetTensorImpl()->storage_initialized();
    ZS_CHECK(values.read || has_memory, "parameter '", item.key(),
             "' has no memory: give the engine the ParameterValues to read it from");
  }
  for (const auto& item : model.named_buffers()) {
    ZS_CHECK(!item.value().defined() || item.value().device() == device, "buffer '", item.key(), "' is on ",
             item.value().device().str(), ", the engine on ", device.str(), ": call model->to(device) first");
  }
}

}  // namespace

ModuleEngine::ModuleEngine(const torch::nn::Module& model, const ParsedConfig& parsed, World& world)
    : ModuleEngine(model, parsed, world, ParameterValues()) {}

ModuleEngine::ModuleEngine(const torch::nn::Module& model, const ParsedConfig& parsed, World& world,
                           const ParameterValues& values)
    : ModuleEngine((refuse_keys_of_python(parsed), check_tensors(model, world.device(), values), model),
                   ModuleUnits(model, parsed.config.unit_classes), parsed, world, values) {}

ModuleEngine::ModuleEngine(const torch::nn::Module& model, ModuleUnits units, const ParsedConfig& parsed, World& world,
                           const ParameterValues& values)
    : Engine(with_values(units.definitions(), values), engine_options(model, parsed, world, values), world.gather(),
             world.reduce(), world.checkpoint(), world.replication()),
      units_(std::move(units)),
      group_(optimizer_of(parsed)),
      rank_(world.rank()) {
  for (const auto& item : model.named_buffers())
    if (item.value().defined()) buffers_.emplace_back(item.key(), item.value());
  // Drops the functions through which the definitions hold the model's tensors, because the engine owns the tensors
  // now.
  for (UnitDefinition& unit : units_.definitions()) unit.tensors = nullptr;
  if (parsed.config.scheduler) {
    schedule_ = std::make_unique<LRSchedule>(*parsed.config.scheduler, std::vector<double>{group_.lr});
  }
  apply_schedule();
}

ModuleEngine::~ModuleEngine() = default;

void ModuleEngine::apply_schedule() {
  if (!schedule_) return;
  group_.lr = schedule_->lrs(iteration_).front();
  if (const auto betas = schedule_->betas(iteration_)) {
    group_.beta1 = betas->beta1;
    group_.beta2 = betas->beta2;
  }
}

StepResult ModuleEngine::step() {
  const StepResult result = Engine::step({group_});
  if (result.applied) {
    ++iteration_;
    apply_schedule();
  }
  // Reports an earlier checkpoint that could not be saved. The step is already counted, so the caller may continue
  // after this error. A run that is about to stop does not get the error here, because it still has a last checkpoint
  // to save.
  if (result.save_failed && !result.stop) report_failed_save();
  return result;
}

double ModuleEngine::lr() const {
  return group_.lr;
}

}  // namespace zeroshard
