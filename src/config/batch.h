#pragma once
#include <cstdint>
#include <optional>
#include <string>

namespace zeroshard {

// The values of the three batch keys, if they are given: train = micro x accumulation x world size.
struct Batch {
  std::optional<int64_t> train, micro, accumulation;
};

struct ResolvedBatch {
  int64_t train = 1, micro = 1, accumulation = 1;
  // Say how the value was computed. Empty if the value was given.
  std::string train_origin, micro_origin, accumulation_origin;
};

// Completes the batch sizes as DeepSpeed does. Any two of them give the third. If only train or only micro is given,
// accumulation is 1. If neither is given, micro is `default_micro`. Throws ConfigError if the product does not hold, or
// if neither is given and `default_micro` is unset.
ResolvedBatch resolve_batch(const Batch& given, int world_size, std::optional<int64_t> default_micro);

}  // namespace zeroshard
