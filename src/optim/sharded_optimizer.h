#pragma once
#include <ATen/core/Tensor.h>

#include <span>
#include <vector>

#include "device/flat_buffer.h"
#include "layout/unit_layout.h"
#include "zeroshard/optimizer.h"

namespace zeroshard {

// What the optimizer steps through: one trainable group of one unit.
struct ShardView {
  const FlatGroup* group = nullptr;
  std::vector<int> param_group;  // per parameter of the group: its param group, or -1 when it has none
  bool whole = false;            // every rank updates everything, and not its shard alone
  at::Tensor param;              // what this rank updates, in the compute dtype
  at::Tensor grads;              // the same elements' gradients
  bool open = false;             // users may write to `param` between steps
};

// A stretch of one parameter in a shard, with tensors over exactly these elements.
struct ParamSlice {
  size_t shard = 0;  // index of the ShardView
  size_t index = 0;  // of the parameter in its group
  int param_group = -1;
  at::Tensor master, grad;
  std::vector<at::Tensor> moments;
  int64_t begin = 0;  // first element, in the parameter
};

struct OptimOptions {
  at::Device device = at::kCPU;
  int rank = 0;
  OptimizerConfig::Type type = OptimizerConfig::Type::kAdamW;
  int num_moments = 2;  // 0 for an optimizer that keeps its own states (a user's torch.optim)
};

// Optimizer states of this rank: fp32 master weights and moments over flat shards, updated in one pass that unscales,
// clips, decays, updates and casts. Param groups are intervals over the shards. Each parameter has its own step count,
// as in torch.optim, and one without a gradient is left alone.
class ShardedOptimizer {
 public:
  // Allocates masters (for groups whose dtype is not fp32) and moments. `shards` without tensors yet: see bind().
  ShardedOptimizer(std::vector<ShardView> shards, OptimOptions options, Ledger& ledger);

  // The master weights of shard `i`, to be filled with initial values; undefined when the parameters are their own.
  const at::Tensor& master(size_t i) const { return states_.at(i).master; }
  // Sets the tensors of shard `i`, once they exist.
  void bind(size_t i, at::Tensor param, at::Tensor grads, bool open = false);

  // Takes over what users have written to open shards: see written.h. update() does so for what it updates.
  void take_writes();
  // Before an update: throws ValueError when `groups` has fewer entries than there are param groups.
  void check(std::span<const ParamGroupOptions> groups) const;
  // Updates shard `i`; an update is over when every shard had its turn, in any order. `has_grad[j]`: parameter j of it
  // got a gradient on some rank. Gradients are multiplied by `grad_scale` first.
  void update(size_t i, std::span<const ParamGroupOptions> groups, const std::vector<bool>& has_grad, float grad_scale);

  // For an optimizer outside: every parameter's stretch of the master weights, without gradient.
  std::vector<ParamSlice> slices() const;
  // After the outside optimizer has changed the masters: casts them to the parameters.
  void publish_masters();

  const std::vector<ShardView>& shards() const { return shards_; }
  // Moment `slot` of shard `i`, 1-D fp32.
  const at::Tensor& moment(size_t i, size_t slot) const { return states_.at(i).moments.at(slot); }
  std::vector<int64_t>& steps(size_t i) { return states_.at(i).steps; }

 private:
  struct State {
    at::Tensor master;  // undefined: the parameters are fp32
    std::vector<at::Tensor> moments;
    std::vector<int64_t> steps;  // updates so far, per parameter
  };
  struct Run;  // adjacent elements with the same hyper-parameters and step count

  Range local(size_t shard, size_t index) const;
  std::vector<Run> runs(size_t shard, const std::vector<bool>& has_grad);
  void update_run(size_t shard, const Run& run, const ParamGroupOptions& options, float grad_scale);

  std::vector<ShardView> shards_;
  OptimOptions options_;
  std::vector<FlatBuffer> memory_;
  std::vector<State> states_;
};

}  // namespace zeroshard
