#include <vector>

#include "engine/impl.h"

// Starts to prefetch the state that the engine needs next, so that the transfer overlaps computation.
namespace zeroshard {

void Engine::Impl::announce_update() {
  if (!memory->has_files()) return;
  std::vector<ChunkStore::Announced> parameters;
  for (const size_t unit : reducer->order_of_forward()) {
    for (ShardedGroup& group : memory->groups->of_unit(unit)) {
      if (!group.is_trained()) continue;
      for (const Range range : ShardedOptimizer::updated_ranges(group, consensus.has_grad[group.number()])) {
        group.states().will_need(range);
        if (group.has_master()) continue;  // master weights overwrite the parameters, so these are not read
        if (const auto place = group.parameters().place_in_files(range)) parameters.push_back(*place);
      }
    }
  }
  if (memory->parameters_in_files) memory->parameters_in_files->will_need_next(parameters);
}

void Engine::Impl::announce_gradients() {
  if (!gradient_fetch && !memory->gradients_in_files) return;
  std::vector<ChunkStore::Announced> in_files;
  for (const size_t unit : reducer->order_of_forward()) {
    for (const ShardedGroup& group : memory->groups->of_unit(unit)) {
      if (!group.is_trained()) continue;
      const GradBucket& bucket = bucket_of(group);
      const int64_t end = group.place().numel_of_host(group.layout());
      for (const Range range : ShardedOptimizer::updated_ranges(group, consensus.has_grad[group.number()])) {
        if (const auto place = bucket.reduced().place_in_files(range)) in_files.push_back(*place);
        if (group.place().fetches_gradients()) gradient_fetch->will_need(bucket.grads(), intersect(range, {0, end}));
      }
    }
  }
  if (memory->gradients_in_files) memory->gradients_in_files->will_need_next(in_files);
}

void Engine::Impl::read_gradients_ahead() {
  if (!memory->gradients_in_files) return;
  std::vector<ChunkStore::Announced> next;
  const std::vector<size_t>& units = reducer->order_of_forward();
  for (auto unit = units.rbegin(); unit != units.rend(); ++unit) {
    for (const ShardedGroup& group : memory->groups->of_unit(*unit)) {
      if (!group.is_trained()) continue;
      if (!bucket_of(group).is_reduced()) continue;
      const Array& grads = bucket_of(group).reduced();
      if (const auto place = grads.place_in_files({0, grads.numel()})) next.push_back(*place);
    }
  }
  memory->gradients_in_files->will_need_next(next);
}

}  // namespace zeroshard
