#include "optim/sharded_optimizer.h"

#include <ATen/Parallel.h>

#include <algorithm>

#include "base/check.h"
#include "kernels/kernels.h"
#include "optim/aten_step.h"
#include "optim/written.h"

namespace zeroshard {
namespace {

constexpr int64_t kGrain = 1 << 16;  // elements below which a second thread does not pay

constexpr int64_t kPiece = 1 << 15;  // elements of an update, where users may have written

at::Tensor cut(const at::Tensor& tensor, Range range) {
  return tensor.slice(0, range.begin, range.end);
}

int64_t kept_numel(const ShardView& shard) {
  return shard.whole ? shard.group->layout.padded_numel() : shard.group->layout.shard_numel();
}

kernels::StepBuffers buffers_of(const UpdateTensors& tensors, int64_t begin, int64_t end, float grad_scale) {
  kernels::StepBuffers buffers;
  const bool own_master = tensors.master.defined();
  const DType dtype = to_dtype(tensors.param.scalar_type());
  char* const param = static_cast<char*>(tensors.param.data_ptr()) + begin * element_size(dtype);
  buffers.master = own_master ? tensors.master.data_ptr<float>() + begin : reinterpret_cast<float*>(param);
  buffers.param = own_master ? param : nullptr;
  buffers.param_dtype = dtype;
  buffers.grad_dtype = to_dtype(tensors.grad.scalar_type());
  buffers.grad = static_cast<const char*>(tensors.grad.const_data_ptr()) + begin * element_size(buffers.grad_dtype);
  buffers.grad_scale = grad_scale;
  buffers.numel = end - begin;
  return buffers;
}

void run_kernel(OptimizerConfig::Type type, const kernels::StepBuffers& buffers, float* first, float* second,
                const ParamGroupOptions& o, int64_t step) {
  using Type = OptimizerConfig::Type;
  switch (type) {
    case Type::kAdam:
    case Type::kAdamW:
      return kernels::adam(buffers, first, second,
                           {.lr = o.lr,
                            .beta1 = o.beta1,
                            .beta2 = o.beta2,
                            .eps = o.eps,
                            .weight_decay = o.weight_decay,
                            .decoupled_weight_decay = o.decoupled_weight_decay,
                            .bias_correction = o.bias_correction,
                            .maximize = o.maximize,
                            .step = step});
    case Type::kSgd:
      return kernels::sgd(buffers, first,
                          {.lr = o.lr,
                           .momentum = o.momentum,
                           .dampening = o.dampening,
                           .weight_decay = o.weight_decay,
                           .nesterov = o.nesterov,
                           .maximize = o.maximize,
                           .first_step = step == 1});
    case Type::kLion:
      return kernels::lion(buffers, first,
                           {.lr = o.lr, .beta1 = o.beta1, .beta2 = o.beta2, .weight_decay = o.weight_decay});
    case Type::kAdagrad:
      return kernels::adagrad(buffers, first,
                              {.lr = o.lr,
                               .lr_decay = o.lr_decay,
                               .weight_decay = o.weight_decay,
                               .eps = o.eps,
                               .maximize = o.maximize,
                               .step = step});
  }
}

}  // namespace

int num_moments(OptimizerConfig::Type type, bool momentum) {
  switch (type) {
    case OptimizerConfig::Type::kAdam:
    case OptimizerConfig::Type::kAdamW:
      return 2;
    case OptimizerConfig::Type::kSgd:
      return momentum ? 1 : 0;
    case OptimizerConfig::Type::kLion:
    case OptimizerConfig::Type::kAdagrad:
      return 1;
  }
  return 0;
}

struct ShardedOptimizer::Run {
  Range range;
  int param_group;
  int64_t step;
};

ShardedOptimizer::ShardedOptimizer(std::vector<ShardView> shards, OptimOptions options, Ledger& ledger)
    : shards_(std::move(shards)), options_(options) {
  int64_t master_numel = 0, numel = 0;
  for (const ShardView& shard : shards_) {
    numel += kept_numel(shard);
    if (shard.group->dtype != DType::kFloat32) master_numel += kept_numel(shard);
  }
  const auto allocate = [&](int64_t count, Category category) {
    if (count == 0) return Carver();
    memory_.emplace_back(count * element_size(DType::kFloat32), options_.device, ledger, category);
    return Carver(memory_.back(), options_.device);
  };
  Carver masters = allocate(master_numel, Category::kMasterWeights);
  std::vector<Carver> moments;
  for (int slot = 0; slot < options_.num_moments; ++slot) moments.push_back(allocate(numel, Category::kMoments));
  for (const ShardView& shard : shards_) {
    const int64_t kept = kept_numel(shard);
    State state;
    if (shard.group->dtype != DType::kFloat32) state.master = masters.take(DType::kFloat32, kept);
    for (Carver& carver : moments) state.moments.push_back(carver.take(DType::kFloat32, kept));
    state.steps.assign(shard.group->params.size(), 0);
    states_.push_back(std::move(state));
  }
}

void ShardedOptimizer::bind(size_t i, at::Tensor param, at::Tensor grads, bool open) {
  shards_.at(i).param = std::move(param);
  shards_.at(i).grads = std::move(grads);
  shards_.at(i).open = open;
}

// The elements of a parameter that this rank updates, as positions in the shard's tensors.
Range ShardedOptimizer::local(size_t shard, size_t index) const {
  const ShardLayout& layout = shards_[shard].group->layout;
  if (shards_[shard].whole) return layout.param(index);
  const Range owned = layout.owned(index, options_.rank);
  const int64_t first = layout.shard(options_.rank).begin;
  return owned.size() > 0 ? Range{owned.begin - first, owned.end - first} : Range{};
}

// Counts this step for every parameter with a gradient, owned here or not, and merges neighbours.
std::vector<ShardedOptimizer::Run> ShardedOptimizer::runs(size_t shard, const std::vector<bool>& has_grad) {
  std::vector<Run> result;
  std::vector<int64_t>& steps = states_[shard].steps;
  for (size_t i = 0; i < steps.size(); ++i) {
    const int group = shards_[shard].param_group[i];
    if (!has_grad[i] || group < 0) continue;
    ++steps[i];
    const Range range = local(shard, i);
    if (range.size() == 0) continue;
    const bool extends = !result.empty() && result.back().range.end == range.begin &&
                         result.back().param_group == group && result.back().step == steps[i];
    if (extends) {
      result.back().range.end = range.end;
    } else {
      result.push_back({range, group, steps[i]});
    }
  }
  return result;
}

void ShardedOptimizer::check(std::span<const ParamGroupOptions> groups) const {
  for (const ShardView& shard : shards_) {
    for (const int group : shard.param_group)
      ZS_CHECK(group < std::ssize(groups), "the optimizer has ", groups.size(),
               " param groups, but a parameter belongs to group ", group);
  }
}

void ShardedOptimizer::update(size_t i, std::span<const ParamGroupOptions> groups, const std::vector<bool>& has_grad,
                              float grad_scale) {
  for (const Run& run : runs(i, has_grad)) update_run(i, run, groups[size_t(run.param_group)], grad_scale);
}

void ShardedOptimizer::update_run(size_t i, const Run& run, const ParamGroupOptions& options, float grad_scale) {
  const UpdateTensors tensors{states_[i].master, shards_[i].param, shards_[i].grads, states_[i].moments};
  const bool open = shards_[i].open && tensors.master.defined();
  if (!options_.device.is_cpu()) {
    if (open) take_written(cut(tensors.master, run.range), cut(tensors.param, run.range));
    return aten_step(options_.type, tensors.slice(run.range.begin, run.range.end), options, run.step, grad_scale);
  }
  const auto moment = [&](size_t slot, int64_t begin) {
    return slot < tensors.moments.size() ? tensors.moments[slot].data_ptr<float>() + begin : nullptr;
  };
  at::parallel_for(run.range.begin, run.range.end, kGrain, [&](int64_t begin, int64_t end) {
    // A piece at a time, what is compared first is in the processor's cache for the update.
    const int64_t piece = open ? kPiece : end - begin;
    for (int64_t from = begin; from < end; from += piece) {
      const int64_t to = std::min(from + piece, end);
      if (open) take_written(cut(tensors.master, {from, to}), cut(tensors.param, {from, to}));
      run_kernel(options_.type, buffers_of(tensors, from, to, grad_scale), moment(0, from), moment(1, from), options,
                 run.step);
    }
  });
}

std::vector<ParamSlice> ShardedOptimizer::slices() const {
  std::vector<ParamSlice> result;
  for (size_t i = 0; i < shards_.size(); ++i) {
    const at::Tensor& weights = states_[i].master.defined() ? states_[i].master : shards_[i].param;
    for (size_t j = 0; j < states_[i].steps.size(); ++j) {
      const Range range = local(i, j);
      if (range.size() == 0) continue;
      const ShardLayout& layout = shards_[i].group->layout;
      const int64_t first = shards_[i].whole ? 0 : layout.shard(options_.rank).begin;
      std::vector<at::Tensor> moments;
      for (const at::Tensor& moment : states_[i].moments) moments.push_back(cut(moment, range));
      result.push_back({i, j, shards_[i].param_group[j], weights.slice(0, range.begin, range.end),
                        shards_[i].grads.slice(0, range.begin, range.end), std::move(moments),
                        first + range.begin - layout.param(j).begin});
    }
  }
  return result;
}

void ShardedOptimizer::take_writes() {
  for (size_t i = 0; i < shards_.size(); ++i) {
    const at::Tensor& master = states_[i].master;
    if (!shards_[i].open || !master.defined()) continue;
    at::parallel_for(0, master.numel(), kGrain, [&](int64_t begin, int64_t end) {
      take_written(cut(master, {begin, end}), cut(shards_[i].param, {begin, end}));
    });
  }
}

void ShardedOptimizer::publish_masters() {
  for (size_t i = 0; i < shards_.size(); ++i) {
    if (states_[i].master.defined()) shards_[i].param.copy_(states_[i].master);
  }
}

}  // namespace zeroshard
