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

// Reduced gradients of the elements that this rank updates. If the gradients are on a device and the host updates,
// `fetch` copies them to the host.
struct UpdateGradients {
  // Calls `use` for consecutive parts that make up `range`, with gradients on the host.
  void lend_on_host(Range range, const GradientFetch::Use& use) const;

  Array& values;
  GradientFetch* fetch = nullptr;
};

// The part of one parameter that this rank updates, for an optimizer outside the engine. The tensors have exactly the
// elements of this part. Moments are fp32.
struct ParamSlice {
  size_t index = 0;   // the parameter's index in its group
  at::Tensor master;  // fp32: the master weights, or the parameter if it is its own master weight
  std::vector<at::Tensor> moments;
  int64_t begin = 0;  // position of the part's first element in the parameter
};

// Updates a rank's shards, one sharded group at a time and in any order. In one pass over a group, the kernels unscale
// and clip the gradients (by one factor, `grad_scale`), decay the weights, update the states, and cast the new weights
// to the dtype of the parameters. The parameters of a sharded group may belong to several param groups. Each parameter
// has its own step count, as in torch.optim. A parameter without a gradient is not updated.
class ShardedOptimizer {
 public:
  // On a device, `ledger` counts temporary memory. The ledger must outlive this object.
  ShardedOptimizer(OptimizerConfig::Type type, at::Device device, Ledger* ledger = nullptr)
      : type_(type), device_(device), ledger_(ledger) {}

  // Neighbouring elements whose states are updated with the same hyper-parameters and the same step count.
  struct Run {
    Range range;  // counted from the first element that this rank updates
    int param_group;
    int64_t step;
    size_t param;  // the first parameter of the run; if whole matrices are updated, the only one
  };

  // Checks the hyper-parameters before an update. Throws ValueError if there are fewer `options` than param groups of
  // `groups`, if some options contradict one another, or if they contradict the states with which `groups` were made.
  void check(std::span<ShardedGroup* const> groups, std::span<const ParamGroupOptions> options) const;
  // Returns the ranges of the group's states that update() will borrow.
  static std::vector<Range> updated_ranges(const ShardedGroup& group, const std::vector<bool>& has_grad);
  // Updates the group with `grads` times `grad_scale`. `has_grad[j]` says whether some rank has a gradient of parameter
  // j.
  void update(ShardedGroup& group, const UpdateGradients& grads, std::span<const ParamGroupOptions> options,
              const std::vector<bool>& has_grad, float grad_scale) const;
  // Makes the second half of an update of whole matrices. The first half is made by MatrixUpdate, which calls this
  // function. `updates` is the result of the first half, and is used instead of gradients. `runs` is the result of
  // count_step().
  void apply(ShardedGroup& group, const at::Tensor& updates, std::span<const Run> runs,
             std::span<const ParamGroupOptions> options, const std::vector<bool>& has_grad) const;
  // count_step() and update_beside() are the two parts of update(), for a caller that updates in another thread.
  // count_step() counts the step of each parameter that has a gradient and belongs to a param group, even if this rank
  // does not update the parameter. Returns the runs that this rank updates.
  static std::vector<Run> count_step(ShardedGroup& group, const std::vector<bool>& has_grad);
  // Updates the states on the host, in any thread. Writes the new parameters to `params` and leaves those of the group
  // unchanged. Both `grads` and `params` must be on the host and have all elements that this rank updates. Ignores the
  // users' writes to parameters.
  void update_beside(ShardedGroup& group, const at::Tensor& grads, std::span<const Run> runs,
                     std::span<const ParamGroupOptions> options, float grad_scale, const at::Tensor& params) const;
  // Copies what users have written to the group's parameters into the master weights (see written.h). Does nothing if
  // users cannot write to them, or if the parameters are their own master weights. update() does the same for the
  // elements that it updates.
  void take_writes(ShardedGroup& group) const;

 private:
  struct RunSettings;  // says how a run is updated

  void update_runs(ShardedGroup& group, const UpdateGradients& grads, std::span<const Run> runs,
                   std::span<const ParamGroupOptions> options, const std::vector<bool>& has_grad,
                   float grad_scale) const;
  // Returns the optimizer of the group. With Muon, AdamW updates the parameters that are not whole matrices.
  OptimizerConfig::Type type_of(const ShardedGroup& group) const;
  // Returns whether all parameters that this rank is to update have a gradient.
  static bool updates_all(const ShardedGroup& group, const std::vector<bool>& has_grad);
  // If `beside` is defined, writes the new parameters there, like update_beside().
  void update_run(ShardedGroup& group, const UpdateGradients& grads, Range range, const RunSettings& settings,
                  const at::Tensor& beside = {}) const;
  void update_on_device(const UpdateTensors& tensors, const RunSettings& settings) const;
  void update_codes_on_device(const UpdateTensors& tensors, const RunSettings& settings) const;
  // `piece` is the range of the group's states that `tensors` have.
  void update_on_host(const ShardedGroup& group, Range piece, const UpdateTensors& tensors,
                      const RunSettings& settings) const;
  void update_stretch(const UpdateTensors& tensors, const RunSettings& settings,
                      const kernels::RandomBits& random) const;
  void take_written_on_device(const at::Tensor& master, const at::Tensor& param) const;

  OptimizerConfig::Type type_;
  at::Device device_;
  Ledger* ledger_;
};

// Returns the part of parameter `index` of the group that this rank updates, or nothing if this rank updates no element
// of it. If the states are in memory for the whole run, the tensors share that memory, so that an outside optimizer can
// write to it. Otherwise the tensors are copies. Moments that are not fp32 are always copies.
std::optional<ParamSlice> slice(const ShardedGroup& group, size_t index);
// Returns the slices of all parameters of the group.
std::vector<ParamSlice> slices(const ShardedGroup& group);

}  // namespace zeroshard
