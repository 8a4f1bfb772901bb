#pragma once
#include <cstdint>

#include "zeroshard/config.h"
#include "zeroshard/progress.h"

namespace zeroshard {

// Counts what an engine has done, and knows what has come of the current step: its micro-batches, which count no more
// when its gradients are discarded, and the gradients that still have to be reduced or applied.
class StepProgress {
 public:
  StepProgress(const Config& config, int world_size);

  Progress& counts() { return counts_; }
  const Progress& counts() const { return counts_; }
  // Throws ValueError for what is no multiple of the micro-batches of all ranks, or where an engine made for one
  // micro-batch per step would sum several in 16 bits unasked; StateError within a step.
  void set_train_batch_size(int64_t samples, const Config& config);
  void set_micro_batch_size(int64_t samples);
  void restore(const NamedCounts& saved, int64_t step);

  void begin_pass(bool sync);
  void add_gradient();
  void end_pass();
  // One whose micro-batch nobody else will end: it ends with the next such pass, or with the step.
  void end_own_pass();
  void end_micro_batch();
  void end_step(bool applied);
  // All gradients since the last step are gone: its micro-batches count no more.
  void discard();

  bool syncs() const { return syncs_; }
  // Gradients have come since the last pass ended.
  bool has_open_gradients() const { return has_open_; }
  // The last pass was under no_sync: gradients of it are on this rank alone.
  bool is_unsynced() const { return is_unsynced_; }
  // A pass has ended since the last step.
  bool is_unapplied() const { return is_unapplied_; }
  // Gradients have come outside of a pass since the last step.
  bool has_plain_gradients() const { return has_plain_; }
  int64_t micro_batches() const { return micro_batches_; }  // of this step, that are over
  int skipped_in_a_row() const { return skipped_in_a_row_; }
  void set_skipped_in_a_row(int steps) { skipped_in_a_row_ = steps; }

 private:
  void forget_gradients();

  Progress counts_;
  int64_t micro_batches_ = 0, samples_ = 0;  // of the current step, in counts_ already
  int skipped_in_a_row_ = 0;
  bool in_pass_ = false, syncs_ = true;  // the pass that runs; gradients outside of one are synced
  bool has_open_ = false, has_plain_ = false, is_unsynced_ = false, is_unapplied_ = false;
  bool has_own_micro_batch_ = false;
};

}  // namespace zeroshard
