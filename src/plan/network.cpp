#include "zeroshard/network.h"

#include <algorithm>

#include "base/check.h"
#include "base/host_sums.h"
#include "plan/buffer_sizes.h"
#include "plan/plan_ledger.h"

namespace zeroshard {
namespace {

// Groups of ranks that exchange data. A group has `per_host` ranks on each of `hosts` hosts. A host has ranks of
// `groups` such groups.
struct Spread {
  int hosts = 1, per_host = 1, groups = 1;
};

// Computes the bytes that a host sends to other hosts for each collective of an engine.
class Network {
 public:
  explicit Network(const PlanOptions& options)
      : two_levels_(options.in_two_levels && !options.on_device),
        sums_in_ring_(options.sums_natively && options.on_device),
        steps_(double(options.grad_accumulation_steps)) {
    const int size = options.world_size, here = options.ranks_per_host;
    if (here == 0) return;
    ZS_CHECK(here > 0 && size * options.replicas % here == 0, size * options.replicas,
             " ranks cannot be dealt to hosts with ", here, " ranks each");
    ZS_CHECK(size % here == 0 || here % size == 0, "each copy of the states is shared by ", size,
             " neighbouring ranks (zeroshard.mesh.shard), and hosts have ", here, " ranks each: give a divisor of ",
             here, ", or a multiple of it");
    if (size < here) {
      shards_ = {.hosts = 1, .per_host = size, .groups = here / size};
      replicas_ = {.hosts = options.replicas * size / here, .per_host = here / size, .groups = size};
    } else {
      shards_ = {.hosts = size / here, .per_host = here, .groups = 1};
      replicas_ = {.hosts = options.replicas, .per_host = 1, .groups = here};
    }
  }

  double gather(double bytes) const { return gather(shards_, bytes); }
  // Returns the bytes of updated parameters that replicas send each other if they share the optimizer states, and 0
  // otherwise.
  double refresh(double shard_numel, DType dtype, bool is_coded, const PlanOptions& options) const {
    if (options.parts == 1) return 0;
    return gather(replicas_, is_coded ? double(replica_sum_bytes(int64_t(shard_numel), options.parts, is_coded))
                                      : shard_numel * double(element_size(dtype)));
  }
  // Returns the bytes of the sums of one flat group's gradients in all micro-batches of a step.
  double sums(double numel, double shard_numel, const GroupPlacement& place, const PlanOptions& options) const {
    double bytes = sums_in_ring_ ? gather(numel * double(element_size(place.wire_dtype)))
                                 : exchange(shards_, numel, place.wire_dtype);
    if (options.replicas > 1) bytes += sum_of_replicas(shard_numel, options);
    return steps_ * bytes;
  }

 private:
  // A gather in two levels first gathers on each host, so each part of the result reaches each host once. Otherwise, a
  // gather is a ring of all ranks, in which the last rank of a host passes on all ranks' parts but one to the next
  // host.
  double gather(const Spread& ranks, double bytes) const {
    if (ranks.hosts == 1) return 0;
    const int parts = two_levels_ ? ranks.hosts : ranks.hosts * ranks.per_host;
    return ranks.groups * bytes * (parts - 1) / parts;
  }
  double exchange(const Spread& ranks, double numel, DType dtype) const {
    const bool sums = two_levels_ && sums_on_hosts(ranks.per_host, dtype);
    const int64_t bytes = sums ? element_size(DType::kFloat32) : ranks.per_host * element_size(dtype);
    return ranks.groups * numel * double(bytes) * (ranks.hosts - 1) / ranks.hosts;
  }
  double sum_of_replicas(double shard_numel, const PlanOptions& options) const {
    const bool is_coded = options.quantized_gradients;
    const int64_t padded = replica_sum_numel(int64_t(shard_numel), options.replicas, is_coded);
    const auto bytes = double(replica_sum_bytes(padded, options.replicas, is_coded));
    const DType dtype = is_coded ? DType::kOther1 : DType::kFloat32;
    const double sent = exchange(replicas_, bytes / double(element_size(dtype)), dtype);
    return options.parts > 1 ? sent : sent + gather(replicas_, bytes);
  }

  bool two_levels_, sums_in_ring_;
  double steps_;  // micro-batches of a step
  Spread shards_, replicas_;
};

// Adds the bytes of a group's parameters to `bytes`. At stage 0, adds the bytes of its reduced gradients instead.
void add_parameters(NetworkBytes& bytes, const Network& network, double numel, Placement placement, DType dtype,
                    const GroupPlacement& place, const PlanOptions& options) {
  const double gathered = network.gather(numel * double(element_size(dtype)));
  const auto passes = double(options.grad_accumulation_steps);
  if (place.updates_whole()) {
    bytes.whole += network.gather(numel * double(element_size(place.grad_dtype)));
  } else if (placement == Placement::kReplicated) {
    bytes.refresh += gathered;
  } else if (placement == Placement::kPersistent) {
    bytes.forward += gathered;  // by the first pass after an update
  } else {
    bytes.forward += passes * gathered;
    bytes.backward += passes * gathered;
  }
}

// Corrects `bytes`, in which forward and backward gather each unit once. The last sharded unit stays gathered for its
// backward, so one gather in each backward is subtracted. If the head uses the embedding's weight, the head's forward
// gathers the embedding again, so one gather in each forward is added instead.
void correct_ends(NetworkBytes& bytes, const Network& network, std::span<const UnitLayout> units,
                  std::span<const UnitPlacement> table, const PlanOptions& options) {
  const auto passes = double(options.grad_accumulation_steps);
  const auto is_sharded = [&](size_t unit) { return table[unit].parameters == Placement::kSharded; };
  const bool is_tied =
      std::ranges::any_of(units[0].params, [](const ParamSpec& param) { return param.names.size() > 1; });
  if (is_tied) {
    if (is_sharded(0)) bytes.forward += passes * network.gather(double(units[0].full_bytes()));
    return;
  }
  for (size_t u = units.size(); u-- > 0;) {
    if (!is_sharded(u)) continue;
    bytes.backward -= passes * network.gather(double(units[u].full_bytes()));
    return;
  }
}

}  // namespace

NetworkBytes plan_network(const ModelShapes& model, const PlanOptions& options) {
  check_plan_options(options);
  const Network network(options);
  const std::vector<UnitLayout> units = make_unit_layouts(model, options);
  const std::vector<UnitPlacement> table = place(units, options);
  NetworkBytes bytes;
  for (size_t u = 0; u < units.size(); ++u) {
    for (size_t g = 0; g < units[u].groups.size(); ++g) {
      const FlatGroup& group = units[u].groups[g];
      const GroupPlacement& place = table[u].groups[g];
      const auto numel = double(group.layout.padded_numel());
      add_parameters(bytes, network, numel, table[u].parameters, group.dtype, place, options);
      const auto shard_numel = double(group.layout.shard_numel());
      bytes.sums += network.sums(numel, shard_numel, place, options);
      if (!group.requires_grad) continue;
      const bool is_coded = refreshes_in_codes(group, table[u].parameters, options);
      bytes.refresh += network.refresh(shard_numel, group.dtype, is_coded, options);
    }
  }
  if (!units.empty()) correct_ends(bytes, network, units, table, options);
  return bytes;
}

NetworkBytes plan_network(double numel, const PlanOptions& options) {
  check_plan_options(options);
  const Network network(options);
  const Placement placement = shards_parameters(options) ? Placement::kSharded : Placement::kReplicated;
  const GroupPlacement place = place_group(options.compute_dtype, /*requires_grad=*/true, placement, options);
  NetworkBytes bytes;
  add_parameters(bytes, network, numel, placement, options.compute_dtype, place, options);
  bytes.sums = network.sums(numel, numel / options.world_size, place, options);
  const bool is_coded =
      options.quantized_weights && placement == Placement::kSharded && options.compute_dtype != DType::kFloat32;
  bytes.refresh += network.refresh(numel / options.world_size, options.compute_dtype, is_coded, options);
  return bytes;
}

}  // namespace zeroshard
