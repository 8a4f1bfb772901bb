#pragma once
#include <cstdint>
#include <optional>
#include <string>

namespace zeroshard {

// The values of the three batch keys. A value is unset if its key is not given, or is "auto". train must be micro x
// accumulation x world size.
struct Batch {
  std::optional<int64_t> train, micro, accumulation;
};

struct ResolvedBatch {
  int64_t train = 1, micro = 1, accumulation = 1;
  // These texts say how each value was computed. A text is empty if the value was given.
  std::string train_origin, micro_origin, accumulation_origin;
};

// Completes the batch sizes as DeepSpeed does. `world_size` counts the ranks of a sequence group, which train on the
// same rows, as one rank. Any two of the values give the third. If only train or only micro is given, accumulation is
// 1. If neither train nor micro is given, micro is `default_micro`. Throws ConfigError if train is not the product, if
// the product needs more than 64 bits, or if train, micro and `default_micro` are all unset.
ResolvedBatch resolve_batch(const Batch& given, int world_size, std::optional<int64_t> default_micro);

}  // namespace zeroshard
