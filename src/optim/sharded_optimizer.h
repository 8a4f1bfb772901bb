#pragma once
#include <ATen/core/Tensor.h>

#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "group/gradient_fetch.h"
#include "group/sharded_group.h"
#include "kernels/kernels.h"
#include "memory/ledger.h"
#include "store/array.h"
#include "zeroshard/optimizer.h"

namespace zeroshard {

struct UpdateTensors;

// Reduced gradients of the elements that this rank updates. `fetch` brings them where they lie on a device and the host
// updates.
struct UpdateGradients {
  // Calls `use` for consecutive parts that make up `range`, with gradients on the host.
  void lend_on_host(Range range, const GradientFetch::Use& use) const;

  Array& values;
  GradientFetch* fetch = nullptr;
};

// A stretch of one parameter that this rank updates, with tensors over exactly these elements, for an optimizer
// outside. Moments are fp32.
struct ParamSlice {
  size_t index = 0;   // of the parameter in its group
  at::Tensor master;  // fp32: the master weights, or the parameter itself
  std::vector<at::Tensor> moments;
  int64_t begin = 0;  // first element, in the parameter
};

// Updates groups, one at a time and in any order: unscales and clips gradients, decays, updates and casts in one pass.
// Param groups are intervals over a group. Each parameter has its own step count, as in torch.optim, and one without a
// gradient is left alone.
class ShardedOptimizer {
 public:
  // On a device, temporary memory is counted in `ledger`, which outlives this.
  ShardedOptimizer(OptimizerConfig::Type type, at::Device device, Ledger* ledger = nullptr)
      : type_(type), device_(device), ledger_(ledger) {}

  // Adjacent elements, of the states, that are updated with the same hyper-parameters and step count.
  struct Run {
    Range range;  // from the first element on that this rank updates
    int param_group;
    int64_t step;
    size_t param;  // the first one; of whole matrices a run has one alone
  };

  // Before an update: throws ValueError when `options` has fewer entries than there are param groups, or one that the
  // groups' states do not allow.
  void check(std::span<ShardedGroup* const> groups, std::span<const ParamGroupOptions> options) const;
  // What update() will borrow of the group's states.
  static std::vector<Range> updated_ranges(const ShardedGroup& group, const std::vector<bool>& has_grad);
  // `grads` are multiplied by `grad_scale` first. `has_grad[j]`: parameter j of the group got a gradient on some rank.
  void update(ShardedGroup& group, const UpdateGradients& grads, std::span<const ParamGroupOptions> options,
              const std::vector<bool>& has_grad, float grad_scale) const;
  // Second half of an update of whole matrices, whose first is MatrixUpdate: `updates` take the place of gradients.
  void apply(ShardedGroup& group, const at::Tensor& updates, std::span<const Run> runs,
             std::span<const ParamGroupOptions> options, const std::vector<bool>& has_grad) const;
  // The same in two parts. Counts the step for each parameter with a gradient, updated here or not.
  static std::vector<Run> count(ShardedGroup& group, const std::vector<bool>& has_grad);
  // Updates the states on the host, on any thread, and leaves the parameters where they are: the new ones go to
  // `params`, as `grads` on the host and of all elements that this rank updates. What users have written does not
  // count.
  void update_beside(ShardedGroup& group, const at::Tensor& grads, std::span<const Run> runs,
                     std::span<const ParamGroupOptions> options, float grad_scale, const at::Tensor& params) const;
  // Master weights take over what users have written to the parameters of an open group: see written.h. update() does
  // so for what it updates.
  void take_writes(ShardedGroup& group) const;

 private:
  struct Update;  // how a run is updated

  void update_runs(ShardedGroup& group, const UpdateGradients& grads, std::span<const Run> runs,
                   std::span<const ParamGroupOptions> options, const std::vector<bool>& has_grad,
                   float grad_scale) const;
  // Of a run: Muon updates what is no whole matrix as AdamW does.
  OptimizerConfig::Type type_of(const ShardedGroup& group) const;
  // Whether each parameter that this rank updates has a gradient.
  static bool updates_all(const ShardedGroup& group, const std::vector<bool>& has_grad);
  void update_run(ShardedGroup& group, const UpdateGradients& grads, Range range, const Update& update) const;
  void update_on_device(const UpdateTensors& tensors, const Update& update) const;
  // `piece`: the states that the tensors are of.
  void update_on_host(const ShardedGroup& group, Range piece, const UpdateTensors& tensors, const Update& update) const;
  void update_stretch(const UpdateTensors& tensors, const Update& update, const kernels::RandomBits& random) const;
  void take_written_on_device(const at::Tensor& master, const at::Tensor& param) const;

  OptimizerConfig::Type type_;
  at::Device device_;
  Ledger* ledger_;
};

// The stretch of parameter `index` of the group that this rank updates, if it has one. Where the states are in memory
// for the whole run, the slice has the states themselves, for an optimizer outside the engine; else, and of moments in
// bf16, it has copies.
std::optional<ParamSlice> slice(const ShardedGroup& group, size_t index);
// Of every parameter.
std::vector<ParamSlice> slices(const ShardedGroup& group);

}  // namespace zeroshard
