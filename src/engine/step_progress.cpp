#include "engine/step_progress.h"

#include <algorithm>
#include <array>

#include "base/check.h"

namespace zeroshard {
namespace {

struct Count {
  const char* name;
  int64_t Progress::*member;
};
constexpr std::array<Count, 4> kCounts{{{"global_steps", &Progress::global_steps},
                                        {"micro_steps", &Progress::micro_steps},
                                        {"global_samples", &Progress::global_samples},
                                        {"skipped_steps", &Progress::skipped_steps}}};

}  // namespace

NamedCounts Progress::counts() const {
  NamedCounts counts;
  for (const auto& [name, member] : kCounts) counts.emplace_back(name, this->*member);
  return counts;
}

void Progress::restore(const NamedCounts& saved, int64_t step) {
  for (const auto& [name, member] : kCounts) {
    const auto is_it = [name = name](const auto& count) { return count.first == name; };
    const auto at = std::find_if(saved.begin(), saved.end(), is_it);
    const int64_t unsaved = member == &Progress::global_steps ? step : 0;
    this->*member = at != saved.end() ? at->second : unsaved;
  }
  micro_steps = global_steps * batch.accumulation;
}

StepProgress::StepProgress(const Config& config, int world_size) {
  counts_.batch = {config.micro_batch_size, config.grad_accumulation_steps, world_size / config.sequence_parallel_size};
  if (!config.managed_accumulation) counts_.boundary = true;
}

void StepProgress::set_train_batch_size(int64_t samples, const Config& config) {
  BatchSize& batch = counts_.batch;
  const int64_t at_once = batch.micro * batch.world_size;
  ZS_CHECK(samples >= at_once && samples % at_once == 0, "train_batch_size is ", samples,
           ", expected a multiple of train_micro_batch_size_per_gpu * world_size = ", batch.micro, " * ",
           batch.world_size, " = ", at_once);
  const int64_t accumulation = samples / at_once;
  const auto dtype_of = [&](int64_t micro_batches) {
    return config.reduced_grad_dtype(micro_batches).value_or(config.communication_dtype.value_or(config.compute_dtype));
  };
  const DType own = dtype_of(config.grad_accumulation_steps), wanted = dtype_of(accumulation);
  ZS_CHECK(wanted == own || wanted != DType::kFloat32, "train_batch_size: gradients of ", accumulation,
           " micro-batches would be summed in ", name_of(own),
           ", as the engine was made for one micro-batch per step. Set {\"data_types\": {\"grad_accum_dtype\": "
           "\"fp32\"}} in the configuration, or start with gradient_accumulation_steps of 2 or more");
  if (is_unapplied_ || has_open_)
    throw StateError(
        "set_train_batch_size within a step would average its micro-batches with two different counts. Call it after "
        "the step() that updates");
  batch.accumulation = accumulation;
  counts_.micro_steps = counts_.global_steps * accumulation;
}

void StepProgress::set_micro_batch_size(int64_t samples) {
  ZS_CHECK(samples >= 1, "train_micro_batch_size_per_gpu is ", samples, ", expected at least 1");
  counts_.batch.micro = samples;
}

void StepProgress::restore(const NamedCounts& saved, int64_t step) {
  counts_.restore(saved, step);
  micro_batches_ = samples_ = 0;
}

void StepProgress::begin_pass(bool sync) {
  in_pass_ = true;
  syncs_ = sync;
}

void StepProgress::add_gradient() {
  has_open_ = true;
  has_plain_ = has_plain_ || !in_pass_;
}

void StepProgress::end_pass() {
  is_unsynced_ = !syncs_;
  is_unapplied_ = true;
  has_open_ = in_pass_ = false;
  syncs_ = true;
}

void StepProgress::end_own_pass() {
  if (has_own_micro_batch_) end_micro_batch();
  has_own_micro_batch_ = true;
}

void StepProgress::end_micro_batch() {
  const int64_t samples = counts_.batch.micro * counts_.batch.world_size;
  ++counts_.micro_steps;
  counts_.global_samples += samples;
  ++micro_batches_;
  samples_ += samples;
  has_own_micro_batch_ = false;
}

void StepProgress::end_step(bool applied) {
  end_micro_batch();
  ++counts_.global_steps;
  if (!applied) ++counts_.skipped_steps;
  if (!applied) {
    ++skipped_in_a_row_;
  } else if (is_unapplied_) {  // without a backward since the last step, the step says nothing about overflows
    skipped_in_a_row_ = 0;
  }
  micro_batches_ = samples_ = 0;
  forget_gradients();
}

Progress StepProgress::at_last_step() const {
  StepProgress discarded = *this;
  discarded.discard();
  return discarded.counts_;
}

void StepProgress::discard() {
  counts_.micro_steps -= micro_batches_;
  counts_.global_samples -= samples_;
  micro_batches_ = samples_ = 0;
  forget_gradients();
}

void StepProgress::forget_gradients() {
  has_open_ = has_plain_ = is_unsynced_ = is_unapplied_ = has_own_micro_batch_ = in_pass_ = false;
  syncs_ = true;
}

}  // namespace zeroshard
