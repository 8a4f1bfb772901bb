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
  for (const auto& shard : has_grad) flags.insert(flags.end(), shard.begin(), shard.end());
  const std::vector<int64_t> agreed = all_reduce(comm, device, flags, ReduceOp::kMax, kTag);
  size_t next = 0;
  for (auto& shard : has_grad) {
    for (size_t i = 0; i < shard.size(); ++i) shard[i] = agreed[next++] != 0;
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
  for (const auto& shard : has_grad) missing += std::count(shard.begin(), shard.end(), false);
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

std::optional<std::pair<size_t, size_t>> find_non_finite(Comm& comm, at::Device device,
                                                         const std::vector<ParamSlice>& slices) {
  constexpr int64_t kShardStride = int64_t{1} << 32, kNone = -(int64_t{1} << 62);
  int64_t first = kNone;  // negated, so that the maximum over ranks is the first
  for (const ParamSlice& slice : slices) {
    if (at::isfinite(slice.grad).all().item<bool>()) continue;
    first = -(int64_t(slice.shard) * kShardStride + int64_t(slice.index));
    break;
  }
  const int64_t agreed = all_reduce(comm, device, {first}, ReduceOp::kMax, kTag)[0];
  if (agreed == kNone) return std::nullopt;
  return std::pair{size_t(-agreed / kShardStride), size_t(-agreed % kShardStride)};
}

}  // namespace zeroshard
