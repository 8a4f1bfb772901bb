#include <algorithm>
#include <span>
#include <vector>

#include "engine/impl.h"
#include "schedule/prefetch.h"

// Starts to prefetch the state that the engine needs next, so that the transfer overlaps computation.
namespace zeroshard {

void Engine::Impl::announce_update() {
  if (!swap && !parameter_swap) return;
  std::vector<ChunkStore::Announced> parameters;
  for (const size_t unit : reducer->order_of_forward()) {
    for (ShardedGroup& group : groups->of_unit(unit)) {
      if (!group.is_trained()) continue;
      for (const Range range : ShardedOptimizer::updated_ranges(group, consensus.has_grad[group.number()])) {
        group.states().will_need(range);
        if (group.has_master()) continue;  // master weights overwrite the parameters, so these are not read
        if (const auto place = group.parameters().place_in_files(range)) parameters.push_back(*place);
      }
    }
  }
  if (parameter_swap) parameter_swap->will_need_next(parameters);
}

void Engine::Impl::announce_gradients() {
  if (!gradient_fetch && !gradient_swap) return;
  std::vector<ChunkStore::Announced> in_files;
  for (const size_t unit : reducer->order_of_forward()) {
    for (const ShardedGroup& group : groups->of_unit(unit)) {
      if (!group.is_trained()) continue;
      const GradBucket& bucket = bucket_of(group);
      const int64_t end = group.place().numel_of_host(group.layout());
      for (const Range range : ShardedOptimizer::updated_ranges(group, consensus.has_grad[group.number()])) {
        if (const auto place = bucket.reduced().place_in_files(range)) in_files.push_back(*place);
        if (group.place().fetches_gradients()) gradient_fetch->will_need(bucket.grads(), intersect(range, {0, end}));
      }
    }
  }
  if (gradient_swap) gradient_swap->will_need_next(in_files);
}

void Engine::Impl::read_gradients_ahead() {
  if (!gradient_swap) return;
  std::vector<ChunkStore::Announced> next;
  const std::vector<size_t>& units = reducer->order_of_forward();
  for (auto unit = units.rbegin(); unit != units.rend(); ++unit) {
    for (const ShardedGroup& group : groups->of_unit(*unit)) {
      if (!group.is_trained()) continue;
      if (!bucket_of(group).is_reduced()) continue;
      const Array& grads = bucket_of(group).reduced();
      if (const auto place = grads.place_in_files({0, grads.numel()})) next.push_back(*place);
    }
  }
  gradient_swap->will_need_next(next);
}

void Engine::Impl::read_parameters_ahead(std::span<const size_t> units) {
  const ChunkStore& store = parameter_swap->store();
  int64_t room = int64_t{store.options().buffer_count} * store.options().chunk_numel;
  std::vector<ChunkStore::Announced> next;
  for (const size_t unit : units.first(std::min(units.size(), kLookAhead))) {
    if (!executor->unit(unit).is_sharded()) continue;
    for (const ShardedGroup& group : groups->of_unit(unit)) {
      const auto place = group.parameters().place_in_files({0, group.kept().size()});
      if (!place || room <= 0) continue;
      next.push_back(*place);
      room -= place->range.size();
    }
  }
  parameter_swap->will_need_next(next);
}

}  // namespace zeroshard
