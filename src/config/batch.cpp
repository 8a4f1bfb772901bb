#include "config/batch.h"

#include "base/format.h"
#include "zeroshard/error.h"

namespace zeroshard {
namespace {

int64_t product(int64_t micro, int64_t accumulation, int64_t world_size) {
  int64_t result = 0;
  if (__builtin_mul_overflow(micro, accumulation, &result) || __builtin_mul_overflow(result, world_size, &result)) {
    throw ConfigError(concat("train_batch_size: ", micro, " * ", accumulation, " * ", world_size,
                             " is more than an integer of 64 bits holds"));
  }
  return result;
}

void check(const ResolvedBatch& batch, int world_size) {
  if (batch.micro >= 1 && batch.accumulation >= 1 &&
      batch.train == product(batch.micro, batch.accumulation, world_size)) {
    return;
  }
  std::string derived;
  const auto multiple_of = [&](int64_t one) { return concat(". It has to be a multiple of ", one, " x ", world_size); };
  if (batch.micro_origin.starts_with("derived"))
    derived = concat("; train_micro_batch_size_per_gpu was derived, rounding down", multiple_of(batch.accumulation));
  if (batch.accumulation_origin.starts_with("derived"))
    derived = concat("; gradient_accumulation_steps was derived, rounding down", multiple_of(batch.micro));
  throw ConfigError(concat("train_batch_size = ", batch.train,
                           ": Check batch related parameters. train_batch_size is not equal to micro_batch_per_gpu * "
                           "gradient_acc_step * world_size ",
                           batch.train, " != ", batch.micro, " * ", batch.accumulation, " * ", world_size,
                           derived.empty() ? ". Two of the three keys are enough: the third follows" : derived));
}

}  // namespace

ResolvedBatch resolve_batch(const Batch& given, int world_size, std::optional<int64_t> default_micro) {
  ResolvedBatch batch;
  std::optional<int64_t> micro = given.micro;
  if (!micro && !given.train) {
    if (!default_micro) {
      throw ConfigError(
          "train_batch_size: either train_batch_size or train_micro_batch_size_per_gpu needs to be a number; both are "
          "missing or \"auto\", which transformers' Trainer fills in");
    }
    micro = default_micro;
    batch.micro_origin = "default: no batch size is given";
  }
  batch.train = given.train.value_or(0);
  batch.micro = micro.value_or(0);
  batch.accumulation = given.accumulation.value_or(1);
  if (!given.accumulation) {
    const bool from_two = given.train && micro;
    if (from_two) batch.accumulation = *given.train / *micro / world_size;
    batch.accumulation_origin =
        from_two ? "derived: train_batch_size / (train_micro_batch_size_per_gpu x world size)" : "default";
  }
  if (!micro) {
    batch.micro = *given.train / world_size / batch.accumulation;
    batch.micro_origin = "derived: train_batch_size / (gradient_accumulation_steps x world size)";
  }
  if (!given.train) {
    batch.train = product(batch.micro, batch.accumulation, world_size);
    batch.train_origin = "derived: train_micro_batch_size_per_gpu x gradient_accumulation_steps x world size";
  }
  check(batch, world_size);
  return batch;
}

}  // namespace zeroshard
