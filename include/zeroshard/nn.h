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

// Trains models written with torch::nn. This header needs LibTorch's C++ API; engine.h does not.
namespace zeroshard {

class LRSchedule;

// A source of values for parameters without memory. Such a parameter is a tensor on the CPU whose storage has a size
// but no data. make_causal_lm() makes models with such parameters.
struct ParameterValues {
  ParameterReader read;
  std::string identity;  // must be the same on all ranks; the engine refuses ranks whose identities differ
};

// Splits the parameters of a model into units, and says for each module which units its forward needs.
//
// A unit is a module whose class is in `unit_classes` ("Block" names class Block or BlockImpl). Without unit_classes, a
// unit is each element of a ModuleList, Sequential or ModuleDict that is no such container itself and lies in no other
// unit. Each module outside of these units that has parameters of its own forms another unit. If the modules inside it
// contain no units, this unit includes them. Otherwise, it has only the module's own parameters. The model itself
// normally forms a unit of its own parameters only. But if its class is in unit_classes, it is a unit like any other
// module of such a class. A tied parameter (one tensor, or two over the same memory) belongs to the first unit that has
// it.
class ModuleUnits {
 public:
  // Throws ValueError if a class matches no module, if a parameter is on the meta device, or if two different
  // parameters share memory.
  explicit ModuleUnits(const torch::nn::Module& model, std::vector<std::string> unit_classes = {});

  // Returns the definitions for Engine's constructor. The caller may set param groups in them first.
  std::vector<UnitDefinition>& definitions() { return definitions_; }
  // Returns the units that must be unsharded around the forward of `module`, or an empty list if it needs none. Throws
  // ValueError for a module inside a unit, and for a module of another model.
  const std::vector<size_t>& of(const torch::nn::Module& module) const;

 private:
  friend class UnitFinder;
  struct Known {
    // Keeps the module alive, so that no other module gets its address. Null for the model itself.
    std::shared_ptr<const torch::nn::Module> held;
    std::string path;
    const torch::nn::Module* unit_module;  // the module that the caller must call: this module, or one around it
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

// An engine for a torch::nn model. LibTorch has no forward hooks, so the model's forward must call its units through
// the engine: `x = engine.call(block, x)` instead of `x = block(x)`. If a sharded unit is called directly, reading its
// parameters throws an error with the text "parameter '...' is sharded".
class ModuleEngine : public Engine {
 public:
  // Takes over the model. Collective. The parameters move to the world's device and get rank 0's values on every rank.
  // The buffers must be on that device already, and also get rank 0's values. Throws ConfigError if the configuration
  // has no optimizer, or has Muon or another key that needs an engine in Python. Throws ValueError for a parameter
  // without memory and for a buffer on another device.
  ModuleEngine(const torch::nn::Module& model, const ParsedConfig& parsed, World& world);
  // Takes over a model whose parameters have no memory yet. Each rank reads from `values` only the values that the rank
  // keeps. So the constructor needs no memory for other values.
  ModuleEngine(const torch::nn::Module& model, const ParsedConfig& parsed, World& world, const ParameterValues& values);
  ~ModuleEngine();

  // Calls module->forward(args...) while the units of the module are unsharded. `module` is a ModuleHolder or a
  // pointer. Returns the result of forward, which must be a tensor, or a tuple or vector of tensors.
  template <typename Module, typename... Args>
  auto call(Module&& module, Args&&... args) {
    return around(*module, [&] { return module->forward(std::forward<Args>(args)...); });
  }
  // Calls `forward` while the units of `module` are unsharded. Returns its result.
  template <typename Forward>
  auto around(const torch::nn::Module& module, Forward&& forward) {
    const std::vector<size_t>& units = units_.of(module);
    for (const size_t unit : units) pre_forward(unit);
    auto output = std::forward<Forward>(forward)();
    const std::vector<at::Tensor> outputs = detail::tensors_in(output);
    for (const size_t unit : units) end_unit_forward(unit, outputs);
    return output;
  }

  // Clips the gradients and updates the parameters. Advances the learning-rate schedule of the configuration if the
  // step was applied. The caller must call step() once after every Config::grad_accumulation_steps calls of backward().
  // If a background save has failed, calls report_failed_save(), except if the result asks the run to stop. The step is
  // counted even if report_failed_save() throws.
  StepResult step();
  double lr() const;  // learning rate of the next step
  int64_t steps() const { return progress().global_steps; }

  // Saves like Engine::save_checkpoint, and adds the model's buffers, the schedule and the random state of this
  // process. The tag is global_step<N>. `client` is a JSON text of the caller. Python's engine can load the checkpoint,
  // and this class can load checkpoints of Python's engine.
  void save(const std::string& root, const std::string& client = "{}", const SaveOptions& save = {});
  // Loads what save() saves. Returns the saved `client`, or nothing if there is no checkpoint and `load` has no tag.
  std::optional<std::string> load(const std::string& root, const LoadOptions& load = {});

  const ModuleUnits& units() const { return units_; }

 private:
  ModuleEngine(const torch::nn::Module& model, ModuleUnits units, const ParsedConfig& parsed, World& world,
               const ParameterValues& values);
  void apply_schedule();

  ModuleUnits units_;
  ParamGroupOptions group_;
  std::unique_ptr<LRSchedule> schedule_;  // null if the learning rate is constant
  int64_t iteration_ = -1;                // iteration of the schedule, which is the number of applied updates - 1
  std::vector<std::pair<std::string, at::Tensor>> buffers_;
  int rank_;
};

}  // namespace zeroshard
