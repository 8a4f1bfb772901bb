#include "group/groups.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/check.h"

namespace zeroshard {
namespace {

// The bytes of each allocation for some units.
struct Sizes {
  std::array<int64_t, kNumTiers> parameter_bytes{};  // by tier
  int64_t master_bytes = 0;
  std::vector<int64_t> moment_bytes;  // by moment
};

Sizes sizes_of(std::span<const UnitLayout> units, std::span<const UnitPlacement> placements) {
  Sizes sizes;
  for (size_t u = 0; u < units.size(); ++u) {
    for (size_t g = 0; g < units[u].groups.size(); ++g) {
      const ShardLayout& layout = units[u].groups[g].layout;
      const GroupPlacement& place = placements[u].groups[g];
      sizes.parameter_bytes[size_t(place.parameters.tier)] += place.parameters.bytes(layout);
      sizes.master_bytes += place.master_weights.bytes_on(Tier::kDevice, layout);
      if (place.moments.extent == Extent::kNothing) continue;
      const auto slots = size_t(place.moments.values);
      sizes.moment_bytes.resize(std::max(sizes.moment_bytes.size(), slots));
      for (size_t slot = 0; slot < slots; ++slot)
        sizes.moment_bytes[slot] += element_size(place.moments.dtype) * place.moments.numel_on(Tier::kDevice, layout);
    }
  }
  return sizes;
}

}  // namespace

// Device memory for the states of some units.
struct Groups::StateMemory {
  Carver masters;
  std::vector<Carver> moments;  // by moment

  // Cuts a group's states on the device from this memory. `master` is set if fp32 parameters are on the device, but the
  // master weights of the group's first elements are offloaded. The parameters of the other elements are then their own
  // master weights, and `master` is a view of them.
  StateTensors cut(const ShardLayout& layout, const GroupPlacement& place, const at::Tensor& master = {}) {
    StateTensors tensors{master, {}};
    const auto take = [&](Carver& from, const Stored& held) {
      return from.take(held.dtype, held.numel_on(Tier::kDevice, layout));
    };
    if (place.master_weights.extent != Extent::kNothing && place.master_weights.has_rest)
      tensors.master = take(masters, place.master_weights);
    if (place.moments.extent != Extent::kNothing)
      for (size_t slot = 0; slot < size_t(place.moments.values); ++slot)
        tensors.moments.push_back(take(moments.at(slot), place.moments));
    return tensors;
  }
};

Groups::Groups(std::span<const UnitLayout> units, std::span<const UnitPlacement> placements, Options options,
               Comm& comm, Ledger& ledger)
    : units_(units), placements_(placements), options_(std::move(options)), comm_(comm), ledger_(ledger) {
  size_t count = 0;
  for (const UnitLayout& unit : units) count += unit.groups.size();
  const auto make_mover = [this](const std::optional<Mover::Slots>& slots) {
    return slots ? std::make_unique<Mover>(options_.device, *slots, ledger_) : nullptr;
  };
  to_host_ = make_mover(options_.to_host);
  to_device_ = make_mover(options_.to_device);
  groups_.reserve(count);  // so that the pointers in trained_ stay valid
  if (!options_.unit_by_unit) add(units.size());
}

ShardedGroup::Options Groups::options_of(size_t unit, size_t group) {
  const GroupPlacement& place = placements_[unit].groups[group];
  ShardedGroup::Options options;
  options.rank = rank();
  options.number = trained_.size();
  options.device = options_.device;
  if (place.host_updates_device_parameters()) options.to_host = to_host_.get();
  if (place.device_updates_offloaded_parameters) options.to_device = to_device_.get();
  options.users_may_write = placements_[unit].parameters != Placement::kSharded;
  for (const size_t i : units_[unit].groups[group].params)
    options.param_group.push_back(options_.param_groups.empty() ? 0 : options_.param_groups.at(unit).at(i));
  return options;
}

void Groups::add(size_t count) {
  const size_t first = first_of_.size() - 1;
  const Sizes sizes = sizes_of(units_.subspan(first, count), placements_.subspan(first, count));
  const auto allocate = [&](int64_t bytes, Category category) {
    if (bytes == 0) return Carver(options_.device);
    states_memory_.emplace_back(bytes, options_.device, ledger_, category);
    return Carver(states_memory_.back());
  };
  StateMemory memory{allocate(sizes.master_bytes, Category::kMasterWeights), {}};
  for (const int64_t bytes : sizes.moment_bytes) memory.moments.push_back(allocate(bytes, Category::kMoments));
  parameters_memory_.emplace_back(comm_, sizes.parameter_bytes[size_t(Tier::kDevice)], options_.device, ledger_,
                                  Category::kParameters, "parameters");
  std::array parameters = {Carver(parameters_memory_.back()), Carver(at::kCPU)};  // by tier
  if (const int64_t bytes = sizes.parameter_bytes[size_t(Tier::kHost)]; bytes > 0) {
    parameters_memory_.push_back(
        FlatBuffer::on_host(bytes, options_.device, options_.pin_parameters, ledger_, Category::kParameters));
    parameters[size_t(Tier::kHost)] = Carver(parameters_memory_.back());
  }

  for (size_t u = first; u < first + count; ++u) {
    const UnitLayout& unit = units_[u];
    for (size_t g = 0; g < unit.groups.size(); ++g) {
      const FlatGroup& flat = unit.groups[g];
      const GroupPlacement& place = placements_[u].groups[g];
      std::unique_ptr<Array> values, states;
      if (place.parameters.tier == Tier::kFile) {
        ZS_ASSERT(options_.parameters_in_files);
        SwapSpace& files = *options_.parameters_in_files;
        values = std::make_unique<Array>(
            values_in_files(files, files.next_group(), place.parameters, flat.layout, Category::kParameters, ledger_),
            Array::Options{.while_a_save_reads = options_.while_a_save_reads});
      } else {
        Carver& from = parameters.at(size_t(place.parameters.tier));
        values = std::make_unique<Array>(from.take(flat.dtype, place.parameters.numel(flat.layout)));
      }
      if (flat.requires_grad) states = states_of(flat.layout, place, memory, *values);
      groups_.emplace_back(unit, g, placements_[u], options_of(u, g), std::move(values), std::move(states));
      if (flat.requires_grad) trained_.push_back(&groups_.back());
    }
    first_of_.push_back(groups_.size());
  }
}

std::unique_ptr<Array> Groups::states_of(const ShardLayout& layout, const GroupPlacement& place, StateMemory& memory,
                                         Array& parameters) {
  const Tier tier = place.state_tier();
  if (tier == Tier::kDevice) {
    StateTensors tensors = memory.cut(layout, place);
    tensors.scales = scales_of(layout, place);
    return std::make_unique<Array>(std::move(tensors));
  }
  const bool in_files = tier == Tier::kFile;
  ZS_ASSERT(!in_files || options_.states_in_files);
  const int64_t border = place.states_on(tier, layout);
  std::unique_ptr<Storage> away =
      in_files
          ? states_in_files(*options_.states_in_files, options_.states_in_files->next_group(), border, place, ledger_)
          : states_on_host(border, place, options_.device, options_.pin_states, ledger_);
  Array::Options options{.has_master = place.master_weights.extent != Extent::kNothing};
  options.scales = scales_of(layout, place);
  const int64_t all = layout.part_numel();
  if (border < all) {
    at::Tensor master;
    if (!place.master_weights.has_rest) {
      const int64_t kept = place.parameters.extent == Extent::kWhole ? 0 : layout.shard(rank()).begin;
      const int64_t first = layout.part(rank()).begin - kept;
      master = parameters.view(Range{border, all} + first);
    }
    options.border = border;
    options.rest = states_in_memory(memory.cut(layout, place, master));
  }
  if (in_files) options.while_a_save_reads = options_.while_a_save_reads;
  return std::make_unique<Array>(std::move(away), std::move(options));
}

std::vector<at::Tensor> Groups::scales_of(const ShardLayout& layout, const GroupPlacement& place) {
  std::vector<at::Tensor> scales;
  if (!place.moments.scales) return scales;
  const int64_t numel = place.moments.numel(layout) / kScaledNumel;
  const int64_t bytes = numel * place.moments.values * int64_t{sizeof(float)};
  states_memory_.push_back(place.moments.scales == Tier::kHost
                               ? FlatBuffer::on_host(bytes, options_.device, /*pin=*/false, ledger_, Category::kMoments)
                               : FlatBuffer(bytes, options_.device, ledger_, Category::kMoments));
  for (int slot = 0; slot < place.moments.values; ++slot)
    scales.push_back(states_memory_.back().view(at::kFloat, slot * numel * int64_t{sizeof(float)}, numel));
  return scales;
}

Groups::~Groups() {
  try {
    await_copies();
  } catch (const std::exception&) {  // the device has failed, so it copies nothing any more
  }
}

std::span<ShardedGroup> Groups::of_unit(size_t unit) {
  return std::span(groups_).subspan(first_of_.at(unit), first_of_.at(unit + 1) - first_of_[unit]);
}

void Groups::await_copies() const {
  for (const Mover* const mover : {to_host_.get(), to_device_.get()})
    if (mover != nullptr) mover->wait();
  for (const ShardedGroup& group : groups_)
    if (!group.is_resident()) group.await_copies();
}

void Groups::free_states() {
  await_copies();
  for (ShardedGroup& group : groups_) group.free_states();
  trained_.clear();
  states_memory_.clear();
}

}  // namespace zeroshard
