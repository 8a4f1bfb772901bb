#include "engine/consensus.h"

#include <ATen/ops/isfinite.h>

#include <algorithm>

#include "device/named_range.h"

namespace zeroshard {

std::vector<int64_t> all_reduce(Comm& comm, std::vector<int64_t> words, ReduceOp op, std::string_view tag) {
  const NamedRange named("agree on", tag);
  comm.host().all_reduce({words.data(), std::ssize(words), DType::kOther8}, op, tag)->wait();
  return words;
}

void compare_histories(std::span<Comm* const> comms, std::string_view tag) {
  // `words` has each history and its negation, and the all-reduce takes the maximum of each over the ranks. The largest
  // negation is the negation of the lowest history. All ranks have the same history exactly if the highest and the
  // lowest history are equal.
  std::vector<int64_t> words;
  std::vector<Comm*> compared;
  for (Comm* const comm : comms) {
    const auto history = comm->history();
    if (!history) continue;
    words.insert(words.end(), {*history, -*history});
    compared.push_back(comm);
  }
  if (words.empty()) return;
  words = all_reduce(*compared[0], std::move(words), ReduceOp::kMax, tag);
  for (size_t i = 0; i < compared.size(); ++i)
    if (words[2 * i] != -words[2 * i + 1]) compared[i]->report_difference(tag);
}

namespace {

constexpr std::string_view kTag = "step";

void agree_on_gradients(Comm& comm, std::vector<std::vector<bool>>& has_grad) {
  std::vector<int64_t> flags;
  for (const auto& group : has_grad) flags.insert(flags.end(), group.begin(), group.end());
  const std::vector<int64_t> agreed = all_reduce(comm, flags, ReduceOp::kMax, kTag);
  size_t next = 0;
  for (auto& group : has_grad) {
    for (size_t i = 0; i < group.size(); ++i) group[i] = agreed[next++] != 0;
  }
}

}  // namespace

Consensus agree_on_step(Comm& comm, const ExactSum& squares, std::vector<std::vector<bool>> has_grad,
                        const StepSignals& signals, const StepState& state) {
  enum : size_t {
    kMissing = ExactSum::kNumLimbs,
    kSaveFailed,
    kStop,
    kWrote,
    kAssigned,
    kHaveGradients,
    kHash,
    kHashSquare
  };
  constexpr int64_t kHashes = int64_t{1} << 24;  // squares of hashes have 48 bits, so 2^15 of them add up in 63 bits
  ExactSum carried;                              // normalised, so that adding the limbs of many ranks cannot overflow
  carried.add(squares);
  std::vector<int64_t> words(carried.limbs().begin(), carried.limbs().end());
  int64_t missing = 0;
  for (const auto& group : has_grad) missing += std::count(group.begin(), group.end(), false);
  const int64_t hash = state.hash % kHashes;
  words.insert(words.end(), {missing, signals.save_failed, signals.stop, signals.wrote, signals.assigned,
                             state.has_gradients, hash, hash * hash});
  words = all_reduce(comm, words, ReduceOp::kSum, kTag);
  std::copy_n(words.begin(), ExactSum::kNumLimbs, carried.limbs().begin());
  if (words[kMissing] > 0) agree_on_gradients(comm, has_grad);
  Consensus consensus;
  consensus.finite = carried.is_finite();
  consensus.squares = carried.value();
  consensus.has_grad = std::move(has_grad);
  consensus.signals = {words[kSaveFailed] > 0, words[kStop] > 0, words[kWrote] > 0, words[kAssigned] > 0};
  consensus.some_have_gradients = words[kHaveGradients] > 0;
  consensus.all_have_gradients = words[kHaveGradients] == comm.world_size();
  // Numbers are all equal exactly if their mean square is the square of their mean.
  const auto sum = static_cast<__int128>(words[kHash]);
  consensus.same_hash = sum * sum == static_cast<__int128>(words[kHashSquare]) * comm.world_size();
  return consensus;
}

bool on_any_rank(Comm& comm, bool flag, std::string_view tag) {
  return all_reduce(comm, {flag ? 1 : 0}, ReduceOp::kMax, tag)[0] != 0;
}

std::string find_non_finite(Comm& comm, std::span<ShardedGroup* const> groups, const std::vector<GradBucket>& buckets) {
  constexpr int64_t kGroupStride = int64_t{1} << 32, kNone = -(int64_t{1} << 62);
  const auto first_here = [&] {
    for (const ShardedGroup* const group : groups) {
      for (size_t i = 0; i < group->num_params(); ++i) {
        const Range range = group->state_range(i);
        if (range.size() > 0 &&
            !at::isfinite(buckets[group->number()].reduced().values().part(range)).all().item<bool>())
          return -(int64_t(group->number()) * kGroupStride + int64_t(i));
      }
    }
    return kNone;
  };
  // first_here() returns a negated position, so that the maximum over ranks belongs to the first parameter.
  const int64_t agreed = all_reduce(comm, {first_here()}, ReduceOp::kMax, kTag)[0];
  if (agreed == kNone) return "";
  return groups[size_t(-agreed / kGroupStride)]->param(size_t(-agreed % kGroupStride)).name();
}

}  // namespace zeroshard
