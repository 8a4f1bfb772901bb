#include "optim/sharded_optimizer.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <c10/core/DeviceGuard.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "base/align.h"
#include "base/check.h"
#include "base/text_hash.h"
#include "device/cut.h"
#include "device/device_kernels.h"
#include "device/dtype.h"
#include "device/math.h"
#include "device/parallel_for.h"
#include "kernels/table.h"
#include "optim/aten_step.h"
#include "optim/matrix_rule.h"
#include "optim/written.h"
#include "plan/device_memory.h"

namespace zeroshard {
namespace {

constexpr int64_t kGrain = 1 << 16;  // the fewest elements that are given to another thread

constexpr int64_t kUpdatedPiece = 1 << 15;  // elements compared and updated at a time

// The number of elements that LibTorch updates at a time, which limits its temporary memory.
constexpr int64_t kAtenPiece = 1 << 23;

StateTensors copied(Array& states, Range range) {
  StateTensors copy;
  const auto append = [&](at::Tensor& to, const at::Tensor& part, Range at) {
    if (!to.defined()) to = at::empty({range.size()}, part.options());
    cut(to, at - range.begin).copy_(part);
  };
  states.lend(range, Array::Access::kRead, [&](Range part, const StateTensors& lent) {
    if (lent.master.defined()) append(copy.master, lent.master, part);
    copy.moments.resize(lent.moments.size());
    for (size_t slot = 0; slot < lent.moments.size(); ++slot) append(copy.moments[slot], lent.moments[slot], part);
  });
  return copy;
}

bool has_narrow_moments(const UpdateTensors& tensors) {
  return !tensors.moments.empty() && tensors.moments[0].scalar_type() != at::kFloat;
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
  if (!tensors.moments.empty()) buffers.moment_dtype = to_dtype(tensors.moments[0].scalar_type());
  for (size_t slot = 0; slot < tensors.scales.size(); ++slot)
    buffers.scales[slot] = tensors.scales[slot].data_ptr<float>() + begin / kScaledNumel;
  return buffers;
}

// Returns the address of element `begin` of a moment, or null if the optimizer has no such moment.
void* moment_of(const UpdateTensors& tensors, size_t slot, int64_t begin) {
  if (slot >= tensors.moments.size()) return nullptr;
  const at::Tensor& moment = tensors.moments[slot];
  return static_cast<char*>(moment.data_ptr()) + begin * moment.element_size();
}

void run_kernel(const kernels::KernelTable& table, OptimizerConfig::Type type, const kernels::StepBuffers& buffers,
                void* first, void* second, const ParamGroupOptions& o, int64_t step) {
  using Type = OptimizerConfig::Type;
  switch (type) {
    case Type::kAdam:
    case Type::kAdamW:
      return kernels::adam(table, buffers, first, second,
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
      // A param group without momentum leaves its buffer as it is. The buffer exists because other param groups need
      // one.
      return kernels::sgd(table, buffers, o.momentum != 0 ? first : nullptr,
                          {.lr = o.lr,
                           .momentum = o.momentum,
                           .dampening = o.dampening,
                           .weight_decay = o.weight_decay,
                           .nesterov = o.nesterov,
                           .maximize = o.maximize,
                           .first_step = step == 1});
    case Type::kLion:
      return kernels::lion(table, buffers, first,
                           {.lr = o.lr, .beta1 = o.beta1, .beta2 = o.beta2, .weight_decay = o.weight_decay});
    case Type::kAdagrad:
      return kernels::adagrad(table, buffers, first,
                              {.lr = o.lr,
                               .lr_decay = o.lr_decay,
                               .weight_decay = o.weight_decay,
                               .eps = o.eps,
                               .maximize = o.maximize,
                               .step = step});
    case Type::kMuon:
      break;  // with Muon, parameters are updated by AdamW or by apply_matrix_update()
  }
}

void apply_matrix(const UpdateTensors& tensors, const ParamGroupOptions& options, double rate_factor) {
  apply_matrix_update(tensors.master.defined() ? tensors.master : tensors.param, tensors.grad, options, rate_factor);
  if (tensors.master.defined()) tensors.param.copy_(tensors.master);
}

void check_sgd(const ShardedGroup& group, const ParamGroupOptions& options, int number) {
  ZS_CHECK(options.momentum == 0 || group.place().moments.extent != Extent::kNothing, "param group ", number,
           " of SGD has momentum ", options.momentum,
           ", but there are no momentum buffers: no param group had a momentum when the engine was made. Make it with "
           "the momentum that one of them is to have");
  ZS_CHECK(!options.nesterov || (options.momentum > 0 && options.dampening == 0), "param group ", number,
           " of SGD has nesterov, which needs a positive momentum and no dampening, got momentum ", options.momentum,
           ", dampening ", options.dampening);
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
    case OptimizerConfig::Type::kMuon:
      return 2;  // the moments of AdamW, which updates the parameters that are no matrices
  }
  return 0;
}

// Counts the step of each parameter that has a gradient and belongs to a param group. Returns the runs to update on
// this rank. Neighbouring parameters of the same param group with the same step count form one run, except if whole
// matrices are updated.
std::vector<ShardedOptimizer::Run> ShardedOptimizer::count_step(ShardedGroup& group,
                                                                const std::vector<bool>& has_grad) {
  std::vector<Run> result;
  std::vector<int64_t>& steps = group.update_counts();
  for (size_t i = 0; i < steps.size(); ++i) {
    const int param_group = group.param_group(i);
    if (!has_grad[i] || param_group < 0) continue;
    ++steps[i];
    const Range range = group.state_range(i);
    if (range.size() == 0) continue;
    const bool extends = !group.flat().is_matrix && !result.empty() && result.back().range.end == range.begin &&
                         result.back().param_group == param_group && result.back().step == steps[i];
    if (extends) {
      result.back().range.end = range.end;
    } else {
      result.push_back({range, param_group, steps[i], i});
    }
  }
  return result;
}

std::vector<Range> ShardedOptimizer::updated_ranges(const ShardedGroup& group, const std::vector<bool>& has_grad) {
  std::vector<Range> result;
  for (size_t i = 0; i < group.num_params(); ++i) {
    const Range range = group.state_range(i);
    if (has_grad[i] && group.param_group(i) >= 0 && range.size() > 0) result.push_back(range);
  }
  return result;
}

void ShardedOptimizer::check(std::span<ShardedGroup* const> groups, std::span<const ParamGroupOptions> options) const {
  for (const ShardedGroup* const group : groups) {
    for (size_t i = 0; i < group->num_params(); ++i) {
      const int number = group->param_group(i);
      ZS_CHECK(number < std::ssize(options), "the optimizer has ", options.size(),
               " param groups, but a parameter belongs to group ", number);
      if (type_ == OptimizerConfig::Type::kSgd && number >= 0) check_sgd(*group, options[size_t(number)], number);
      if (type_ == OptimizerConfig::Type::kMuon && number >= 0)
        ZS_CHECK(options[size_t(number)].use_muon == group->flat().is_matrix, "param group ", number,
                 " of Muon has use_muon ", options[size_t(number)].use_muon ? "true" : "false", ", but had ",
                 group->flat().is_matrix ? "true" : "false",
                 " when the engine was made: make a new engine to change it");
    }
  }
}

void UpdateGradients::lend_on_host(Range range, const GradientFetch::Use& use) const {
  const StateTensors* const memory = values.in_memory();
  if (memory == nullptr || memory->at(0).is_cpu()) return values.lend(range, Array::Access::kRead, use);
  ZS_ASSERT(fetch != nullptr, "the host updates, and nobody brings gradients from ", memory->at(0).device().str());
  fetch->lend(memory->at(0), range, use);
}

struct ShardedOptimizer::RunSettings {
  OptimizerConfig::Type type;
  const ParamGroupOptions& options;
  int64_t step;
  float grad_scale;
  bool may_be_written;     // whether users might have written to the parameters since the last step
  double rate_factor = 1;  // MatrixRule::rate_factor() of a whole matrix
};

OptimizerConfig::Type ShardedOptimizer::type_of(const ShardedGroup& group) const {
  const bool is_other = type_ == OptimizerConfig::Type::kMuon && !group.flat().is_matrix;
  return is_other ? OptimizerConfig::Type::kAdamW : type_;
}

void ShardedOptimizer::update(ShardedGroup& group, const UpdateGradients& grads,
                              std::span<const ParamGroupOptions> options, const std::vector<bool>& has_grad,
                              float grad_scale) const {
  update_runs(group, grads, count_step(group, has_grad), options, has_grad, grad_scale);
}

void ShardedOptimizer::apply(ShardedGroup& group, const at::Tensor& updates, std::span<const Run> runs,
                             std::span<const ParamGroupOptions> options, const std::vector<bool>& has_grad) const {
  Array values(updates);
  update_runs(group, UpdateGradients{values}, runs, options, has_grad, /*grad_scale=*/1);
}

void ShardedOptimizer::update_runs(ShardedGroup& group, const UpdateGradients& grads, std::span<const Run> runs,
                                   std::span<const ParamGroupOptions> options, const std::vector<bool>& has_grad,
                                   float grad_scale) const {
  const bool may_be_written = group.users_may_write() && group.has_master() && !group.is_untouched();
  group.forget_parameters();
  for (const Run& run : runs) {
    RunSettings settings{type_of(group), options[size_t(run.param_group)], run.step, grad_scale, may_be_written};
    if (group.flat().is_matrix)
      settings.rate_factor =
          matrix_rule(type_).rate_factor(matrix_shape(group.param(run.param).shape), settings.options);
    update_run(group, grads, run.range, settings);
  }
  // Remembers the parameters only if they surely equal the rounded master weights. They can differ if users have
  // written to parameters that this step did not update. A later step then finds the writes.
  if (!may_be_written || updates_all(group, has_grad)) group.remember_parameters();
}

void ShardedOptimizer::update_beside(ShardedGroup& group, const at::Tensor& grads, std::span<const Run> runs,
                                     std::span<const ParamGroupOptions> options, float grad_scale,
                                     const at::Tensor& params) const {
  ZS_ASSERT(params.defined(), "unit ", group.unit().name, " has no memory for new parameters");
  Array values(grads);
  for (const Run& run : runs)
    update_run(group, {values}, run.range,
               {type_of(group), options[size_t(run.param_group)], run.step, grad_scale, /*may_be_written=*/false},
               params);
}

bool ShardedOptimizer::updates_all(const ShardedGroup& group, const std::vector<bool>& has_grad) {
  for (size_t i = 0; i < group.num_params(); ++i)
    if (!has_grad[i] && group.param_group(i) >= 0 && group.state_range(i).size() > 0) return false;
  return true;
}

void ShardedOptimizer::update_run(ShardedGroup& group, const UpdateGradients& grads, Range range,
                                  const RunSettings& settings, const at::Tensor& beside) const {
  const auto on_part = [&](Range part, const StateTensors& lent, const at::Tensor& params) {
    if (!params.is_cpu()) return update_on_device({lent, params, grads.values.view(part)}, settings);
    grads.lend_on_host(part, [&](Range piece, const at::Tensor& values) {
      const Range here = piece - part.begin;
      update_on_host(group, piece, {lent.slice(here), cut(params, here), values}, settings);
    });
  };
  if (beside.defined()) return group.lend_beside(range, beside, on_part);
  group.lend(range, Array::Access::kModify, {.reads = settings.may_be_written, .writes = true}, on_part);
}

// Updates moments that are 8-bit codes. Decodes one piece of them at a time, updates the piece with the kernels for
// fp32, and encodes it again while it is in the device's cache.
void ShardedOptimizer::update_codes_on_device(const UpdateTensors& tensors, const RunSettings& settings) const {
  // A param group without momentum leaves its codes as they are.
  const bool has_moments = settings.type != OptimizerConfig::Type::kSgd || settings.options.momentum != 0;
  for (int64_t begin = 0; begin < tensors.param.numel(); begin += kDecodedNumel) {
    UpdateTensors piece = tensors.slice({begin, std::min(begin + kDecodedNumel, tensors.param.numel())});
    const std::vector<at::Tensor> codes = std::exchange(piece.moments, {}), scales = std::exchange(piece.scales, {});
    std::optional<Temporary> temporary;
    if (ledger_) temporary.emplace(*ledger_, decoded_bytes(piece.param.numel(), int(codes.size())));
    for (size_t slot = 0; slot < codes.size() && has_moments; ++slot) {
      piece.moments.push_back(at::empty_like(codes[slot], at::kFloat));
      math::decode(codes[slot], scales[slot], /*is_signed=*/slot == 0, piece.moments.back());
    }
    update_on_device(piece, settings);
    for (size_t slot = 0; slot < piece.moments.size(); ++slot)
      math::encode(piece.moments[slot], codes[slot], scales[slot], /*is_signed=*/slot == 0);
  }
}

void ShardedOptimizer::update_on_device(const UpdateTensors& tensors, const RunSettings& settings) const {
  if (!tensors.scales.empty()) return update_codes_on_device(tensors, settings);
  const int64_t numel = tensors.param.numel();
  const bool takes = settings.may_be_written && tensors.master.defined();
  const DeviceKernels* const own = device_kernels(device_.type());
  if (settings.type == OptimizerConfig::Type::kMuon) {
    if (takes) take_written_on_device(tensors.master, tensors.param);
    for (int64_t begin = 0; begin < numel; begin += kAtenPiece)
      apply_matrix(tensors.slice({begin, std::min(begin + kAtenPiece, numel)}), settings.options, settings.rate_factor);
    return;
  }
  if (!own) {
    if (takes) take_written_on_device(tensors.master, tensors.param);
    for (int64_t begin = 0; begin < numel; begin += kAtenPiece)
      aten_step(settings.type, tensors.slice({begin, std::min(begin + kAtenPiece, numel)}), settings.options,
                settings.step, settings.grad_scale);
    return;
  }
  const c10::OptionalDeviceGuard guard(tensors.param.device());
  kernels::StepBuffers buffers = buffers_of(tensors, 0, numel, settings.grad_scale);
  buffers.takes_written = takes;
  run_kernel(*own->table, settings.type, buffers, moment_of(tensors, 0, 0), moment_of(tensors, 1, 0), settings.options,
             settings.step);
}

// Updates a piece. If moments are not fp32, updates one parameter after another, because the random numbers of
// stochastic rounding and the blocks of 8-bit codes are counted from the first element of each parameter. So the
// results do not depend on where shards, loans and pieces are cut.
void ShardedOptimizer::update_on_host(const ShardedGroup& group, Range piece, const UpdateTensors& tensors,
                                      const RunSettings& settings) const {
  if (!has_narrow_moments(tensors)) return update_stretch(tensors, settings, {});
  for (size_t i = 0; i < group.num_params(); ++i) {
    const Range own = intersect(group.state_range(i), piece);
    if (own.size() == 0) continue;
    const int64_t first = group.updated().begin + own.begin - group.layout().param(i).begin;
    update_stretch(tensors.slice(own - piece.begin), settings,
                   {kernels::random_key(hash_text(group.param(i).name()), settings.step), first});
  }
}

void ShardedOptimizer::update_stretch(const UpdateTensors& tensors, const RunSettings& settings,
                                      const kernels::RandomBits& random) const {
  const bool takes = settings.may_be_written && tensors.master.defined();
  // Each thread gets whole blocks of codes, because the codes of a block have one scale.
  const int64_t unit = tensors.scales.empty() ? 1 : kScaledNumel, numel = tensors.param.numel();
  parallel_for(0, ceil_div(numel, unit), kGrain / unit, [&](int64_t first, int64_t last) {
    const int64_t begin = first * unit, end = std::min(last * unit, numel);
    // Compares and updates a small piece at a time, so that the compared values are still in the processor's cache.
    const int64_t piece = takes ? kUpdatedPiece : end - begin;
    for (int64_t from = begin; from < end; from += piece) {
      const int64_t to = std::min(from + piece, end);
      if (takes) take_written(cut(tensors.master, {from, to}), cut(tensors.param, {from, to}));
      if (settings.type == OptimizerConfig::Type::kMuon) {
        apply_matrix(tensors.slice({from, to}), settings.options, settings.rate_factor);
        continue;
      }
      kernels::StepBuffers buffers = buffers_of(tensors, from, to, settings.grad_scale);
      buffers.random = {random.key, random.first_element + from};
      run_kernel(kernels::active_table(), settings.type, buffers, moment_of(tensors, 0, from),
                 moment_of(tensors, 1, from), settings.options, settings.step);
    }
  });
}

// Takes users' writes on a device. If the device has no kernel that takes them, takes one piece at a time, which limits
// the temporary memory.
void ShardedOptimizer::take_written_on_device(const at::Tensor& master, const at::Tensor& param) const {
  if (const DeviceKernels* const own = device_kernels(device_.type()); own && own->take_written)
    return take_written(master, param);
  for (int64_t begin = 0; begin < master.numel(); begin += kComparedNumel) {
    const Range piece{begin, std::min(begin + kComparedNumel, master.numel())};
    std::optional<Temporary> temporary;
    if (ledger_) temporary.emplace(*ledger_, compare_bytes(piece.size()));
    take_written(cut(master, piece), cut(param, piece));
  }
}

void ShardedOptimizer::take_writes(ShardedGroup& group) const {
  if (!group.users_may_write() || !group.has_master() || group.is_untouched()) return;
  const Range updated = group.updated();  // nobody writes to the padding
  const Range all{0, std::clamp<int64_t>(group.layout().numel() - updated.begin, 0, updated.size())};
  const auto take = [&](Range part, const at::Tensor& master, const at::Tensor& params) {
    if (!params.is_cpu()) return take_written_on_device(master, params);
    parallel_for(0, part.size(), kGrain, [&](int64_t begin, int64_t end) {
      take_written(cut(master, {begin, end}), cut(params, {begin, end}));
    });
  };
  const auto lend = [&](Range range, Array::Access access, const ShardedGroup::MasterUse& use) {
    group.lend_master(range, access, {.reads = true}, use);
  };
  if (group.states().in_memory()) return lend(all, Array::Access::kModify, take);
  // If states are not in memory, first only reads them, to find the parts to which users have written. Then writes only
  // these parts. Most often there are none. Parts that the device updates are written in any case.
  std::vector<Range> written;
  lend(all, Array::Access::kRead, [&](Range part, const at::Tensor& master, const at::Tensor& params) {
    if (!params.is_cpu() || is_written(master, params)) written.push_back(part);
  });
  for (const Range part : written) lend(part, Array::Access::kModify, take);
}

std::optional<ParamSlice> slice(const ShardedGroup& group, size_t index) {
  const Range range = group.state_range(index);
  if (range.size() == 0) return std::nullopt;
  StateTensors own;
  if (const StateTensors* const all = group.states().in_memory()) {
    own = all->slice(range);
  } else {
    own = copied(group.states(), range);
  }
  for (size_t slot = 0; slot < own.moments.size(); ++slot) {
    at::Tensor& moment = own.moments[slot];
    if (moment.scalar_type() == at::kFloat) continue;
    const at::Tensor wide = at::empty({range.size()}, at::TensorOptions(at::kFloat));
    group.states().read_moment(range, int(slot), moment, wide.data_ptr());
    moment = wide.to(moment.device());
  }
  const int64_t begin = group.updated().begin + range.begin - group.layout().param(index).begin;
  const at::Tensor weights = own.master.defined() ? own.master : group.updated_part(range);
  return ParamSlice{index, weights, own.moments, begin};
}

std::vector<ParamSlice> slices(const ShardedGroup& group) {
  std::vector<ParamSlice> result;
  for (size_t i = 0; i < group.num_params(); ++i)
    if (auto part = slice(group, i)) result.push_back(std::move(*part));
  return result;
}

}  // namespace zeroshard
