#pragma once
#include <torch/nn/module.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "zeroshard/engine.h"
#include "zeroshard/world.h"

// Models written with torch::nn. This header needs LibTorch's C++ API; engine.h does not.
namespace zeroshard {

class LRSchedule;

// The source of values for parameters without memory. Such a parameter is a tensor on the CPU whose storage has its
// size but no data, as make_causal_lm() makes them.
struct ParameterValues {
  ParameterReader read;
  std::string identity;  // ranks with values from different sources are refused
};

// How the parameters of a model are split into units, and around which module's forward each must be whole.
//
// A unit is a module whose class is in `unit_classes` ("Block" names class Block or BlockImpl); without any, an element
// of a ModuleList, Sequential or ModuleDict. Outside of those, a module with parameters of its own forms a unit
// together with all modules in it. If those modules contain units, and for the model itself, only its own parameters
// form a unit. A tied parameter (one tensor, or two over the same memory) belongs to the first unit that has it.
class ModuleUnits {
 public:
  // Throws ValueError when a class matches no module, a parameter is on the meta device, or two share memory without
  // being one.
  explicit ModuleUnits(const torch::nn::Module& model, std::vector<std::string> unit_classes = {});

  // For Engine's constructor. Param groups may be set here before that.
  std::vector<UnitDefinition>& definitions() { return definitions_; }
  // The units that the forward of `module` needs: none for a module without units. Throws ValueError for a module
  // inside a unit, or of another model.
  const std::vector<size_t>& of(const torch::nn::Module& module) const;

 private:
  friend class UnitFinder;
  struct Known {
    std::shared_ptr<const torch::nn::Module> held;  // so that no other module gets its address; null for the model
    std::string path;
    const torch::nn::Module* unit_module;  // the module to call: this one, or one around it
    std::vector<size_t> units;
  };

  std::vector<UnitDefinition> definitions_;
  std::map<const torch::nn::Module*, Known> modules_;
};

namespace detail {
inline std::vector<at::Tensor> tensors_in(const at::Tensor& output) {
  return {output};
}
inline std::vector<at::Tensor> tensors_in(const std::vector<at::Tensor>& output) {
  return output;
}
template <typename... Tensors>
std::vector<at::Tensor> tensors_in(const std::tuple<Tensors...>& output) {
  return std::apply([](const auto&... tensors) { return std::vector<at::Tensor>{tensors...}; }, output);
}
}  // namespace detail

// An engine for a torch::nn model. LibTorch has no forward hooks, so the model's forward calls its units through the
// engine: `x = engine.call(block, x)` instead of `x = block(x)`. If a unit is called directly at stage 3, reading its
// parameters throws "parameter '...' is sharded".
class ModuleEngine : public Engine {
 public:
  // Collective. The model takes rank 0's values on every rank, on the world's device; its buffers must already be
  // there. Throws ConfigError without an optimizer in the configuration.
  ModuleEngine(const torch::nn::Module& model, const ParsedConfig& parsed, World& world);
  // The same for a model whose parameters have no memory yet: each rank reads only what it keeps, and never has more
  // than its shards.
  ModuleEngine(const torch::nn::Module& model, const ParsedConfig& parsed, World& world, const ParameterValues& values);
  ~ModuleEngine();

  // module->forward(args...): `module` is a ModuleHolder or a pointer. Returns a tensor, or a tuple or vector of some.
  template <typename Module, typename... Args>
  auto call(Module&& module, Args&&... args) {
    return around(*module, [&] { return module->forward(std::forward<Args>(args)...); });
  }
  // Runs `forward`, which uses the parameters of `module`.
  template <typename Forward>
  auto around(const torch::nn::Module& module, Forward&& forward) {
    const std::vector<size_t>& units = units_.of(module);
    for (const size_t unit : units) pre_forward(unit);
    auto output = std::forward<Forward>(forward)();
    const std::vector<at::Tensor> outputs = detail::tensors_in(output);
    for (const size_t unit : units) end_unit(unit, outputs);
    return output;
  }

  // Clips, updates, and advances the configuration's learning-rate schedule when the step was applied. Call it once per
  // Config::grad_accumulation_steps calls of backward().
  StepResult step();
  double lr() const;  // of the next step
  int64_t steps() const { return progress().global_steps; }

  // Like Engine's, and adds the model's buffers, the schedule and the random numbers of this process. The tag is
  // global_step<N>; `client` is JSON of the caller's. Python's engine can load it, and vice versa.
  void save(const std::string& root, const std::string& client = "{}", const SaveOptions& save = {});
  // Returns `client` as saved, or nothing when there is no checkpoint (and no tag was asked for).
  std::optional<std::string> load(const std::string& root, const LoadOptions& load = {});

  const ModuleUnits& units() const { return units_; }

 private:
  ModuleEngine(const torch::nn::Module& model, ModuleUnits units, const ParsedConfig& parsed, World& world,
               const ParameterValues& values);
  void apply_schedule();

  ModuleUnits units_;
  ParamGroupOptions group_;
  std::unique_ptr<LRSchedule> schedule_;  // null: a constant rate
  int64_t iteration_ = -1;                // of the schedule: updates that were applied, less one
  std::vector<std::pair<std::string, at::Tensor>> buffers_;
  int rank_;
};

}  // namespace zeroshard
