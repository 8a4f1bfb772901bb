#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace zeroshard {

// How many samples a step takes: `micro` of each rank in each of `accumulation` micro-batches.
struct BatchSize {
  int64_t micro = 1, accumulation = 1, world_size = 1;
  int64_t train() const { return micro * accumulation * world_size; }
};

using NamedCounts = std::vector<std::pair<std::string, int64_t>>;

// How far training has come, with what was before the checkpoint that it went on from. An engine counts; whoever drives
// it may set the counts, as scripts do, and say where steps end.
struct Progress {
  int64_t global_steps = 0;    // updates, with those that were skipped
  int64_t skipped_steps = 0;   // updates whose gradients were not finite
  int64_t micro_steps = 0;     // micro-batches that are over
  int64_t global_samples = 0;  // of all ranks
  BatchSize batch;
  std::optional<bool> boundary = std::nullopt;  // unset: micro-batches are counted

  // Whether the current micro-batch is the last of its step.
  bool is_boundary() const { return boundary.value_or((micro_steps + 1) % batch.accumulation == 0); }
  // The counts, by the names that checkpoints give them.
  NamedCounts counts() const;
  // Goes on from a checkpoint's counts: what it does not have is 0, and `step` where it does not tell global_steps.
  // micro_steps are what they were had all steps been of this run's batch size: it goes on where a step begins.
  void restore(const NamedCounts& saved, int64_t step);
};

}  // namespace zeroshard
