#pragma once
#include <cstdint>

#include "zeroshard/config.h"
#include "zeroshard/progress.h"

namespace zeroshard {

// Counts an engine's steps, micro-batches and samples. It also tracks whether the current step has gradients that are
// not reduced or not applied yet. If the gradients of a step are discarded, the step's micro-batches do not count any
// more.
class StepProgress {
 public:
  StepProgress(const Config& config, int world_size);

  Progress& counts() { return counts_; }
  const Progress& counts() const { return counts_; }
  // Returns the counts without the micro-batches of the current step.
  Progress at_last_step() const;
  // See Engine::set_train_batch_size(). Throws ValueError if `samples` is not a positive multiple of the samples of one
  // micro-batch on all ranks together. Also throws ValueError if an engine that was made for one micro-batch per step
  // would now accumulate in 16 bits, unless the configuration asks for that. Throws StateError within a step.
  void set_train_batch_size(int64_t samples, const Config& config);
  void set_micro_batch_size(int64_t samples);
  void restore(const NamedCounts& saved, int64_t step);

  void begin_pass(bool sync);
  void add_gradient();
  void end_pass();
  // Call it after end_pass() if the caller of the pass may, but need not call end_micro_batch(). The micro-batch of
  // this pass is not counted yet. The next call of end_own_pass(), end_micro_batch() or end_step() counts it.
  void end_own_pass();
  void end_micro_batch();
  void end_step(bool applied);
  // Call it when all gradients since the last step are discarded. The micro-batches since the last step then do not
  // count any more.
  void discard();

  bool syncs() const { return syncs_; }
  // Returns whether gradients have arrived since the last pass ended.
  bool has_open_gradients() const { return has_open_; }
  bool is_in_pass() const { return in_pass_; }
  // Returns whether the last pass of this step was under no_sync, so that its gradients are on this rank only.
  bool is_unsynced() const { return is_unsynced_; }
  // Returns whether a pass has ended since the last step, and its gradients were not discarded.
  bool is_unapplied() const { return is_unapplied_; }
  // Returns whether gradients have arrived outside of a pass since the last step.
  bool has_plain_gradients() const { return has_plain_; }
  int64_t micro_batches() const { return micro_batches_; }  // finished micro-batches of this step
  int skipped_in_a_row() const { return skipped_in_a_row_; }
  void set_skipped_in_a_row(int steps) { skipped_in_a_row_ = steps; }

 private:
  void forget_gradients();

  Progress counts_;
  int64_t micro_batches_ = 0, samples_ = 0;  // counts of the current step; counts_ includes them
  int skipped_in_a_row_ = 0;
  bool in_pass_ = false, syncs_ = true;  // outside of a pass, syncs_ is true, because gradients there are reduced
  bool has_open_ = false, has_plain_ = false, is_unsynced_ = false, is_unapplied_ = false;
  bool has_own_micro_batch_ = false;
};

}  // namespace zeroshard
