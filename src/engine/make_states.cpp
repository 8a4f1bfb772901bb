#include "engine/make_states.h"

#include "base/check.h"
#include "group/host_states.h"

namespace zeroshard {

std::unique_ptr<OptimizerStates> make_states(const ShardLayout& layout, const GroupPlacement& place,
                                             const StatesContext& context) {
  // fp32 parameters on the CPU have no master weights of their own.
  const Tier tier = place.moments.extent != Extent::kNothing ? place.moments.tier : place.master_weights.tier;
  switch (tier) {
    case Tier::kHost:
      return std::make_unique<HostStates>(layout, place, context.options.device,
                                          context.options.config.offload_optimizer.pin_memory, context.ledger);
    case Tier::kFile:
      ZS_ASSERT(context.swap != nullptr, "there are no swap files");
      return std::make_unique<FileStates>(*context.swap, context.next_in_file++, layout, place, context.ledger);
    case Tier::kDevice:
      break;
  }
  ZS_ASSERT(false, "states on the tier ", name_of(tier), " are made elsewhere");
}

}  // namespace zeroshard
