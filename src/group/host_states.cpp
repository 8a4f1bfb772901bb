#include "group/host_states.h"

#include <utility>

#include "device/dtype.h"

namespace zeroshard {

HostStates::HostStates(const ShardLayout& layout, const GroupPlacement& place, at::Device device, bool pin,
                       Ledger& ledger) {
  const auto add = [&](const Held& held, Category category) {
    const int64_t numel = held.numel_on(Tier::kHost, layout);
    memory_.push_back(FlatBuffer::on_host(numel * element_size(held.dtype), device, pin, ledger, category));
    return memory_.back().view(to_scalar_type(held.dtype), 0, numel);
  };
  if (place.master_weights.extent != Extent::kNothing)
    tensors_.master = add(place.master_weights, Category::kMasterWeights);
  if (place.moments.extent == Extent::kNothing) return;
  for (int slot = 0; slot < place.moments.values; ++slot)
    tensors_.moments.push_back(add(place.moments, Category::kMoments));
}

void HostStates::lend(Range range, Access access, const Borrower& use) {
  if (access != Access::kRead && reading_) {
    reading_->synchronize();
    reading_.reset();
  }
  if (range.size() > 0) use(range, tensors_.slice(range.begin, range.end));
}

}  // namespace zeroshard
