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
    case Tier::kDevice:
    case Tier::kFile:
      break;
  }
  ZS_ASSERT(false, "states on the tier ", name_of(tier), " are made elsewhere");
}

}  // namespace zeroshard
