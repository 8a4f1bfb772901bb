#include "engine/make_states.h"

#include "base/check.h"
#include "group/host_states.h"

namespace zeroshard {

std::unique_ptr<OptimizerStates> make_states(const ShardLayout& layout, const GroupPlacement& place,
                                             const StatesContext& context) {
  switch (place.state_tier()) {
    case Tier::kHost:
      return std::make_unique<HostStates>(layout, place, context.options.device,
                                          context.options.config.offload_optimizer.pin_memory, context.ledger);
    case Tier::kFile:
      ZS_ASSERT(context.swap != nullptr, "there are no swap files");
      return std::make_unique<FileStates>(*context.swap, context.next_in_file++, layout, place, context.ledger);
    case Tier::kDevice:
      break;
  }
  ZS_ASSERT(false, "states on the tier ", name_of(place.state_tier()), " are made elsewhere");
}

}  // namespace zeroshard
