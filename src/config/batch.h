#pragma once
#include <cstdint>
#include <optional>
#include <string>

namespace zeroshard {

// The values of the three batch keys: train = micro x accumulation x world size.
struct Batch {
  std::optional<int64_t> train, micro, accumulation;
};

struct ResolvedBatch {
  int64_t train = 1, micro = 1, accumulation = 1;
  // Say how inferred values were computed; empty for given values.
  std::string train_origin, micro_origin, accumulation_origin;
};

// Completes the batch sizes like DeepSpeed: any two give the third, and train or micro alone means an accumulation of
// 1. If neither is given, `default_micro` is used. Throws ConfigError if the product does not hold or nothing is given.
ResolvedBatch resolve_batch(const Batch& given, int world_size, std::optional<int64_t> default_micro);

}  // namespace zeroshard
