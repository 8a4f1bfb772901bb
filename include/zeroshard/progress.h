#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace zeroshard {

// The number of samples of a step. In a step, every rank takes `accumulation` micro-batches of `micro` samples each.
// The ranks of a sequence group take the same samples, so `world_size` counts them as one rank.
struct BatchSize {
  int64_t micro = 1, accumulation = 1, world_size = 1;
  int64_t train() const { return micro * accumulation * world_size; }
};

using NamedCounts = std::vector<std::pair<std::string, int64_t>>;

// The progress of training, including the steps before the checkpoint that the run continued from. The engine advances
// the counts. The engine's caller may set them, too, and may decide by `boundary` where steps end, as scripts for
// DeepSpeed do.
struct Progress {
  int64_t global_steps = 0;    // finished steps, including those whose update was skipped
  int64_t skipped_steps = 0;   // steps whose update was skipped, because a gradient was not finite
  int64_t micro_steps = 0;     // finished micro-batches
  int64_t global_samples = 0;  // samples of all ranks
  BatchSize batch;
  std::optional<bool> boundary = std::nullopt;  // whether a step ends now; unset: the count of micro-batches decides

  // Returns whether the current micro-batch is the last of its step.
  bool is_boundary() const { return boundary.value_or((micro_steps + 1) % batch.accumulation == 0); }
  // Returns the counts with the names that checkpoints use.
  NamedCounts counts() const;
  // Continues from `saved`, the counts of a checkpoint. Missing counts become 0, except that a missing global_steps
  // becomes `step`. micro_steps becomes the count that it would have if all steps had been of this run's batch size, so
  // that training continues at the start of a step.
  void restore(const NamedCounts& saved, int64_t step);
};

}  // namespace zeroshard
