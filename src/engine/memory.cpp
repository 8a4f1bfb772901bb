#include "engine/memory.h"

#include <algorithm>
#include <map>
#include <utility>

#include "engine/make_activation_keeper.h"
#include "engine/swap_files.h"
#include "schedule/prefetch.h"

namespace zeroshard {

Memory::Memory(const std::vector<UnitDefinition>& units, const EngineOptions& options, EnginePlan& plan,
               const Ranks& ranks, std::function<void()> while_a_save_reads)
    : gathers(options.device) {
  // On a device, the shards and states of a unit are allocated when the unit is made, because the model's tensors of
  // earlier units have been freed by then. On the CPU, everything can be allocated at once, because zeroed memory takes
  // no space until it is written.
  Groups::Options group_options;
  group_options.device = options.device;
  group_options.unit_by_unit = !options.device.is_cpu();
  if (plan.holds_for_some_group(&GroupPlacement::host_updates_device_parameters)) {
    const RingClass& slots = plan.parameter_copies;
    group_options.to_host = {.bytes = slots.slot_bytes,
                             .count = slots.slots,
                             .piece_numel = kCopiedNumel,
                             .pin = options.config.offload_optimizer.pin_memory};
  }
  if (plan.holds_for_some_group(&GroupPlacement::device_updates_offloaded_parameters)) {
    const RingClass& slots = plan.shard_copies;
    group_options.to_device = {.bytes = slots.slot_bytes,
                               .count = slots.slots,
                               .piece_numel = kCopiedNumel,
                               .on_host = false,
                               .category = Category::kGatherRing};
  }
  group_options.pin_states = options.config.offload_optimizer.pin_memory;
  group_options.pin_parameters = options.config.offload_param.pin_memory;
  const SwapContext context{plan.layouts, plan.placements, options, plan.options, ranks.all, plan.ledger};
  const auto on_failure = [&ranks](const std::string& message) { ranks.fail_all("training cannot go on: " + message); };
  states_in_files = make_swap_files(context, on_failure);
  parameters_in_files = make_parameter_files(context, on_failure);
  gradients_in_files = make_gradient_files(context, on_failure);
  activations = make_activation_keeper(options, ranks.all, plan.ledger, on_failure);
  group_options.while_a_save_reads = std::move(while_a_save_reads);
  group_options.states_in_files = states_in_files.get();
  group_options.parameters_in_files = parameters_in_files.get();
  for (const UnitDefinition& unit : units) {
    std::vector<int>& of_unit = group_options.param_groups.emplace_back();
    for (const ParamDefinition& param : unit.params) of_unit.push_back(param.param_group);
  }
  group_options.rank = ranks.states.rank();
  groups = std::make_unique<Groups>(plan.layouts, plan.placements, std::move(group_options), ranks.gather, plan.ledger);
  if (plan.refresh_codes.slots > 0)
    coded_refresh = std::make_unique<CodedRefresh>(*ranks.replicas, plan.refresh_codes, options.device, plan.ledger);
  gather_ring = std::make_unique<SlotRing>(
      std::map<int64_t, int>{}, [device = options.device, &ledger = plan.ledger, &comm = ranks.gather](int64_t size) {
        return FlatBuffer(size, device, ledger, Category::kGatherRing, &comm);
      });
}

void Memory::free_states() {
  groups->free_states();
  states_in_files.reset();
  gradients_in_files.reset();
  activations.reset();
}

void Memory::read_parameters_ahead(std::span<const size_t> units, Executor& executor) {
  const ChunkStore& store = parameters_in_files->store();
  int64_t room = int64_t{store.options().buffer_count} * store.options().chunk_numel;
  std::vector<ChunkStore::Announced> next;
  for (const size_t unit : units.first(std::min(units.size(), kLookAhead))) {
    if (!executor.unit(unit).is_sharded()) continue;
    for (const ShardedGroup& group : groups->of_unit(unit)) {
      const auto place = group.parameters().place_in_files({0, group.kept().size()});
      if (!place || room <= 0) continue;
      next.push_back(*place);
      room -= place->range.size();
    }
  }
  parameters_in_files->will_need_next(next);
}

}  // namespace zeroshard
