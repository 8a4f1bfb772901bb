#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linalg_vector_norm.h>

#include <cmath>
#include <optional>
#include <string>

#include "base/check.h"
#include "device/cut.h"
#include "engine/impl.h"

// Lets users read and set master weights, states and gradients of single parameters between passes.
namespace zeroshard {
namespace {

// A trained parameter: its group, and its index in the group.
struct TrainedParam {
  ShardedGroup* group = nullptr;
  size_t index = 0;

  const ParamSpec& spec() const { return group->param(index); }
};

// Finds parameter `param` of a unit. Returns nothing for a parameter that no optimizer updates. Throws ValueError for a
// parameter that does not exist.
std::optional<TrainedParam> find_trained(Groups& groups, size_t unit, size_t param) {
  for (ShardedGroup& group : groups.of_unit(unit)) {
    ZS_CHECK(param < group.unit().params.size(), "unit ", group.unit().name, " has no parameter ", param);
    for (size_t i = 0; i < group.num_params(); ++i) {
      if (group.flat().params[i] != param) continue;
      if (!group.is_trained() || group.param_group(i) < 0) return std::nullopt;
      return TrainedParam{&group, i};
    }
  }
  return std::nullopt;
}

// Returns all values of a parameter, as fp32 in its shape. Each rank passes the values of its part (ShardLayout::owned)
// as the 1-D tensor `mine`. A rank without `mine` contributes zeros. Returns nothing if `has_some` is false on all
// ranks. `what` names the values in errors. Collective.
std::optional<at::Tensor> assemble(const Ranks& ranks, const TrainedParam& param, bool has_some,
                                   const std::optional<at::Tensor>& mine, const std::string& what) {
  Comm& comm = ranks.states;
  const ShardLayout& layout = param.group->layout();
  const std::string tag = concat(what, " of '", param.spec().name(), "'");
  if (ranks.all.world_size() > 1) has_some = all_reduce(ranks.all, {has_some ? 1 : 0}, ReduceOp::kMax, tag)[0] > 0;
  if (!has_some) return std::nullopt;
  const Range whole = layout.param(param.index);
  at::Tensor values = at::empty({whole.size()}, at::TensorOptions(at::kFloat).device(ranks.device));
  for (int rank = 0; rank < comm.world_size(); ++rank) {
    const Range owned = layout.owned(param.index, rank);
    if (owned.size() == 0) continue;
    at::Tensor piece = cut(values, owned - whole.begin);
    if (rank == comm.rank() && mine) {
      piece.copy_(*mine);
    } else {
      piece.zero_();
    }
    if (comm.world_size() > 1) comm.broadcast({piece.data_ptr(), owned.size(), DType::kFloat32}, rank, tag)->wait();
  }
  return values.view(param.spec().shape);
}

// Returns whether this rank itself had a gradient of the parameter since the last step. The values of a reduced shard
// do not show it, because a parameter without any gradient has values there, too. If the bucket has no gradients of the
// current step, returns true, because its gradients are then those of the last step, and local_grad() has already
// checked that some rank had a gradient at that step.
bool has_own_grad(const GradBucket& bucket, size_t index) {
  return !bucket.reduced().are_current() || bucket.has_grad(index);
}

Range owned_part(const TrainedParam& param) {
  return intersect(param.group->layout().param(param.index), param.group->mine());
}

}  // namespace

std::optional<OptimizerSlice> Engine::slice(size_t unit, size_t param) const {
  const Impl& impl = *impl_;
  impl.check_whole();
  const auto found = find_trained(*impl.memory->groups, unit, param);
  if (!found) return std::nullopt;
  ShardedGroup& group = *found->group;
  impl.update->await();
  // fp32 parameters have master weights only if they are on a device, and their master weights on the host or in files.
  // Users may have written to such parameters, so their master weights take the parameters' values first.
  if (!impl.update->is_pending() && group.has_master() && group.users_may_write() &&
      group.flat().dtype == DType::kFloat32)
    group.copy_parameters_to_master();
  if (const auto slice = zeroshard::slice(group, found->index)) {
    const ParamSpec& spec = found->spec();
    return OptimizerSlice{
        spec.name(), group.param_group(slice->index), slice->master, false, {}, slice->moments, spec.shape,
        slice->begin};
  }
  const at::Tensor none = at::empty({0}, at::TensorOptions(at::kFloat).device(impl.options.device));
  return OptimizerSlice{
      found->spec().name(), group.param_group(found->index), none, false, {}, {}, found->spec().shape, 0};
}

std::optional<at::Tensor> Engine::local_param(size_t unit, size_t param) {
  impl_->check_whole();
  impl_->executor->unit(unit).await_readers();  // because the caller may write
  impl_->writes->lend_shards();
  for (const ShardedGroup& group : impl_->memory->groups->of_unit(unit)) {
    ZS_CHECK(param < group.unit().params.size(), "unit ", group.unit().name, " has no parameter ", param);
    for (size_t i = 0; i < group.num_params(); ++i) {
      if (group.flat().params[i] != param) continue;
      if (!group.parameters().in_memory()) return std::nullopt;
      const Range owned = intersect(group.layout().param(i), group.shard());
      return cut(group.my_shard(), owned.size() == 0 ? Range{} : owned - group.shard().begin);
    }
  }
  return std::nullopt;
}

std::optional<at::Tensor> Engine::full_state(size_t unit, size_t param, const std::optional<at::Tensor>& mine,
                                             const std::string& kind) {
  Impl& impl = *impl_;
  impl.check_whole();
  const auto found = find_trained(*impl.memory->groups, unit, param);
  if (!found) return std::nullopt;
  if (!found->group->place().updates_whole())
    return assemble(impl.ranks, *found, mine.has_value(), mine, concat("full ", kind));
  if (!mine) return std::nullopt;
  return mine->to(at::kFloat, /*non_blocking=*/false, /*copy=*/true).view(found->spec().shape);
}

std::optional<at::Tensor> Engine::local_grad(size_t unit, size_t param) const {
  Impl& impl = *impl_;
  impl.check_whole();
  const auto found = find_trained(*impl.memory->groups, unit, param);
  if (!found) return std::nullopt;
  impl.pass->check_reduced(found->spec());
  impl.pass->gradients().take_dropped();
  const GradBucket& bucket = impl.bucket_of(*found->group);
  double scale = loss_scale();
  if (!bucket.reduced().are_current()) {  // see Note [Gradients after the step]
    const std::optional<double>& last = impl.pass->last_grad_scale();
    if (!last || !impl.step->has_grad(*found->group, found->index)) return std::nullopt;
    scale = *last;
  }
  const Range mine = found->group->mine(), owned = owned_part(*found);
  // If every rank updates whole parameters, the bucket begins with the first element of the group. Otherwise it begins
  // with the first element of this rank's part.
  const int64_t first = owned.begin - (found->group->place().updates_whole() ? 0 : mine.begin);
  return bucket.reduced()
      .values()
      .part({first, first + owned.size()})
      .to(impl.options.device, at::kFloat, /*non_blocking=*/false, /*copy=*/true)
      .div_(scale);
}

std::optional<at::Tensor> Engine::full_grad(size_t unit, size_t param) {
  Impl& impl = *impl_;
  const auto mine = local_grad(unit, param);
  const auto found = find_trained(*impl.memory->groups, unit, param);
  if (!found) return std::nullopt;
  const GradBucket& bucket = impl.bucket_of(*found->group);
  return assemble(impl.ranks, *found, mine && has_own_grad(bucket, found->index), mine, "full gradient");
}

std::vector<std::pair<std::string, double>> Engine::grad_norms() {
  Impl& impl = *impl_;
  impl.check_whole();
  std::vector<std::string> names;
  std::vector<int64_t> has_grad;  // whether this rank had a gradient; after the all-reduce, whether any had
  std::vector<double> squares;    // sums over this rank's elements; after the all-reduce, over all elements
  for (size_t unit = 0; unit < num_units(); ++unit) {
    for (ShardedGroup& group : impl.memory->groups->of_unit(unit)) {
      for (size_t i = 0; i < group.num_params(); ++i) {
        if (!group.is_trained() || group.param_group(i) < 0) continue;
        const auto mine = local_grad(unit, group.flat().params[i]);
        const GradBucket& bucket = impl.bucket_of(group);
        names.push_back(group.param(i).name());
        has_grad.push_back(mine && has_own_grad(bucket, i));
        squares.push_back(mine ? std::pow(at::linalg_vector_norm(*mine, 2, {}, false, at::kDouble).item<double>(), 2)
                               : 0);
      }
    }
  }
  if (impl.ranks.all.world_size() > 1 && !names.empty()) {
    constexpr std::string_view kTag = "norms of gradients";
    has_grad = all_reduce(impl.ranks.all, has_grad, ReduceOp::kMax, kTag);
    impl.ranks.states.host()
        .all_reduce({squares.data(), std::ssize(squares), DType::kFloat64}, ReduceOp::kSum, kTag)
        ->wait();
  }
  std::vector<std::pair<std::string, double>> norms;
  for (size_t i = 0; i < names.size(); ++i)
    if (has_grad[i] != 0) norms.emplace_back(names[i], std::sqrt(squares[i]));
  return norms;
}

void Engine::set_grad(size_t unit, size_t param, int64_t begin, const at::Tensor& values) {
  Impl& impl = *impl_;
  impl.check_whole();
  const auto found = find_trained(*impl.memory->groups, unit, param);
  if (!found) return;
  impl.pass->check_reduced(found->spec());
  impl.pass->gradients().take_dropped();
  const GradBucket& bucket = impl.bucket_of(*found->group);
  if (!bucket.reduced().are_current())
    throw StateError(concat("the gradient of '", found->spec().name(),
                            "' cannot be set now: set it between backward() and the step() that uses it"));
  const int64_t first = found->group->layout().param(found->index).begin + begin;
  const at::Tensor scaled = values.detach().to(impl.options.device, at::kFloat).reshape({-1}).mul(loss_scale());
  const Range owned = owned_part(*found);
  const Range both = intersect(owned, {first, first + scaled.numel()});
  ZS_CHECK(both == owned, "values are for elements [", begin, ", ", begin + scaled.numel(), ") of '",
           found->spec().name(), "', but this rank keeps [", owned.begin - first + begin, ", ",
           owned.end - first + begin, "): give values for all that it keeps");
  impl.reducer->replace(found->group->number(), found->index, cut(scaled, both - first));
  impl.pass->gradients().show();
}

void Engine::set_weights(size_t unit, size_t param, int64_t begin, const at::Tensor& values) {
  const at::NoGradGuard no_grad;
  Impl& impl = *impl_;
  impl.check_whole();
  const auto found = find_trained(*impl.memory->groups, unit, param);
  if (!found) return;
  ShardedGroup& group = *found->group;
  impl.executor->end_gather(unit);
  const at::Tensor flat = values.detach().to(impl.options.device, at::kFloat).reshape({-1});
  const int64_t first = group.layout().param(found->index).begin + begin;
  const Range positions{first, first + flat.numel()};
  if (positions.size() == 0) return;
  ZS_CHECK(intersect(positions, group.layout().param(found->index)) == positions, "values are for elements [", begin,
           ", ", begin + flat.numel(), ") of '", found->spec().name(), "', which has ", found->spec().numel());
  impl.update->await();
  if (impl.update->is_pending() && group.was_written()) impl.writes->lose_sums();
  group.write_master(positions, flat);
  impl.update->replace(group, positions, flat);
  const auto copy_to = [&](const at::Tensor& memory, Range held) {
    const Range both = intersect(positions, held);
    cut(memory, both - held.begin).copy_(cut(flat, both - first));
  };
  group.write_parameters(positions, flat);
  if (impl.update->is_pending()) UserWrites::remember_open_parameters(group);
  impl.memory->gathers.after_current_stream();
  Unit& whole = impl.executor->unit(unit);
  if (whole.placement() == Placement::kReplicated || !whole.is_unsharded()) return;
  for (size_t g = 0; g < whole.layout().groups.size(); ++g)
    if (&whole.layout().groups[g] == &group.flat()) copy_to(whole.full(g), {0, group.layout().padded_numel()});
}

NamedCounts Engine::updates() const {
  NamedCounts result;
  for (const ShardedGroup* const group : impl_->memory->groups->trained())
    for (size_t i = 0; i < group->num_params(); ++i)
      if (group->param_group(i) >= 0) result.emplace_back(group->param(i).name(), group->update_counts()[i]);
  return result;
}

}  // namespace zeroshard
