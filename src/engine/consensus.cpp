#include "engine/consensus.h"

#include <ATen/ops/isfinite.h>
#include <ATen/ops/tensor.h>

#include <algorithm>

namespace zeroshard {

std::vector<int64_t> all_reduce(Comm& comm, at::Device device, const std::vector<int64_t>& words, ReduceOp op,
                                std::string_view tag) {
  const at::Tensor tensor = at::tensor(words, at::kLong).to(device);
  comm.all_reduce({tensor.data_ptr(), tensor.numel(), DType::kOther8}, op, tag)->wait();
  const at::Tensor host = tensor.cpu();
  const int64_t* const data = host.const_data_ptr<int64_t>();
  return {data, data + host.numel()};
}

namespace {

constexpr std::string_view kTag = "step";

void agree_on_gradients(Comm& comm, at::Device device, std::vector<std::vector<bool>>& has_grad) {
  std::vector<int64_t> flags;
  for (const auto& group : has_grad) flags.insert(flags.end(), group.begin(), group.end());
  const std::vector<int64_t> agreed = all_reduce(comm, device, flags, ReduceOp::kMax, kTag);
  size_t next = 0;
  for (auto& group : has_grad) {
    for (size_t i = 0; i < group.size(); ++i) group[i] = agreed[next++] != 0;
  }
}

}  // namespace

Consensus agree_on_step(Comm& comm, at::Device device, const ExactSum& squares, std::vector<std::vector<bool>> has_grad,
                        const StepSignals& signals, const StepState& state) {
  enum : size_t {
    kMissing = ExactSum::kNumLimbs,
    kSaveFailed,
    kStop,
    kWrote,
    kHaveGradients,
    kTrainable,
    kTrainableSquare
  };
  constexpr int64_t kHashes = int64_t{1} << 24;  // so that the squares of many ranks can be added
  ExactSum carried;                              // normalised, so that limbs of many ranks can be added
  carried.add(squares);
  std::vector<int64_t> words(carried.limbs().begin(), carried.limbs().end());
  int64_t missing = 0;
  for (const auto& group : has_grad) missing += std::count(group.begin(), group.end(), false);
  const int64_t hash = state.trainable % kHashes;
  words.insert(words.end(),
               {missing, signals.save_failed, signals.stop, signals.wrote, state.has_gradients, hash, hash * hash});
  words = all_reduce(comm, device, words, ReduceOp::kSum, kTag);
  std::copy_n(words.begin(), ExactSum::kNumLimbs, carried.limbs().begin());
  if (words[kMissing] > 0) agree_on_gradients(comm, device, has_grad);
  Consensus consensus;
  consensus.finite = carried.is_finite();
  consensus.squares = carried.value();
  consensus.has_grad = std::move(has_grad);
  consensus.signals = {words[kSaveFailed] > 0, words[kStop] > 0, words[kWrote] > 0};
  consensus.some_have_gradients = words[kHaveGradients] > 0;
  consensus.all_have_gradients = words[kHaveGradients] == comm.world_size();
  // Numbers are all alike exactly when their mean square is the square of their mean.
  const auto sum = static_cast<__int128>(words[kTrainable]);
  consensus.same_trainable = sum * sum == static_cast<__int128>(words[kTrainableSquare]) * comm.world_size();
  return consensus;
}

std::vector<int64_t> agree_on_flags(Comm& comm, at::Device device, const std::vector<int64_t>& flags) {
  return all_reduce(comm, device, flags, ReduceOp::kMax, "parameters that were written");
}

std::string find_non_finite(Comm& comm, at::Device device, std::span<ShardedGroup* const> groups,
                            const std::vector<GradBucket>& buckets) {
  constexpr int64_t kGroupStride = int64_t{1} << 32, kNone = -(int64_t{1} << 62);
  const auto first_here = [&] {
    for (const ShardedGroup* const group : groups) {
      const at::Tensor& grads = buckets[group->number()].grads();
      for (size_t i = 0; i < group->num_params(); ++i) {
        const Range range = group->state_range(i);
        if (range.size() > 0 && !at::isfinite(grads.slice(0, range.begin, range.end)).all().item<bool>())
          return -(int64_t(group->number()) * kGroupStride + int64_t(i));
      }
    }
    return kNone;
  };
  // Negated, so that the maximum over ranks is the first.
  const int64_t agreed = all_reduce(comm, device, {first_here()}, ReduceOp::kMax, kTag)[0];
  if (agreed == kNone) return "";
  return groups[size_t(-agreed / kGroupStride)]->param(size_t(-agreed % kGroupStride)).name();
}

}  // namespace zeroshard
