#include "reduce/launch_order.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <numeric>
#include <utility>

#include "base/check.h"

namespace zeroshard {

LaunchOrder::LaunchOrder(std::vector<size_t> first_of, Comm* all) : first_of_(std::move(first_of)), all_(all) {
  std::vector<size_t> order(num_buckets());
  std::iota(order.rbegin(), order.rend(), size_t{0});
  set(std::move(order));
}

// A unit's buckets are launched where backward passes the unit's first use in forward, because the unit's last
// gradients come there. Unused units are launched last, because otherwise all other units would wait for them.
void LaunchOrder::learn_forward(std::span<const size_t> needed, Comm& comm) {
  std::vector<size_t> order;
  std::vector<bool> used(num_units(), false);
  const auto append = [&](size_t unit) {
    if (used.at(unit)) return;
    used[unit] = true;
    for (const size_t bucket : of_unit(unit)) order.push_back(bucket);
  };
  for (const size_t unit : needed) append(unit);
  std::reverse(order.begin(), order.end());
  const auto unused = std::ptrdiff_t(order.size());
  for (size_t unit = 0; unit < num_units(); ++unit) append(unit);
  std::reverse(order.begin() + unused, order.end());
  take_from_rank_0(order, comm, "order of forward");
  basis_ = Basis::kForward;
}

void LaunchOrder::note_ready(size_t bucket) {
  if (basis_ == Basis::kBackward) return;
  std::erase(completed_, bucket);
  completed_.push_back(bucket);
}

void LaunchOrder::learn_backward(Comm& comm) {
  if (basis_ == Basis::kBackward) return;
  take_from_rank_0(completed_, comm, "order of backward");
  basis_ = Basis::kBackward;
}

void LaunchOrder::take_from_rank_0(const std::vector<size_t>& own, Comm& comm, std::string_view tag) {
  std::vector<int64_t> order(own.begin(), own.end());
  ZS_ASSERT(order.size() == num_buckets());
  // The broadcast among the ranks of one replica comes first. It finds ranks whose passes differ before all replicas
  // take the order of rank 0.
  for (Comm* const ranks : {&comm, all_})
    if (ranks != nullptr)
      ranks->host().broadcast({order.data(), std::ssize(order), DType::kOther8}, /*root=*/0, tag)->wait();
  set({order.begin(), order.end()});
}

void LaunchOrder::set(std::vector<size_t> buckets) {
  buckets_ = std::move(buckets);
  units_of_forward_.clear();
  std::vector<bool> listed(num_units(), false);
  const auto append = [&](size_t unit) {
    if (!listed[unit]) units_of_forward_.push_back(unit);
    listed[unit] = true;
  };
  for (auto bucket = buckets_.rbegin(); bucket != buckets_.rend(); ++bucket)
    append(size_t(std::upper_bound(first_of_.begin(), first_of_.end(), *bucket) - first_of_.begin()) - 1);
  for (size_t unit = 0; unit < num_units(); ++unit) append(unit);
}

}  // namespace zeroshard
