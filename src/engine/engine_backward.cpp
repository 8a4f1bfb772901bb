#include "base/check.h"
#include "base/log.h"
#include "engine/impl.h"

namespace zeroshard {

void Engine::begin_backward(bool sync) {
  Pass& pass = *impl_->pass;
  impl_->check_whole();
  // Open gradients are those that have arrived since the last pass ended, and their reductions may be running. A pass
  // under no_sync reduces nothing, so other ranks could wait in vain for this rank's part in these reductions.
  // Therefore the reductions are ended first.
  if (!sync && pass.progress().has_open_gradients()) pass.end_only_reductions();
  // The thread of a delayed update may wait for a save that reads the states, and new gradients wait for this update.
  // The update is awaited here, because this wait can be interrupted.
  if (impl_->memory->states_in_files && impl_->saves->busy()) impl_->update->await();
  pass.begin(sync);
  if (impl_->memory->activations) impl_->memory->activations->begin_backward();
}

void Engine::end_backward() {
  impl_->check_in_use();
  impl_->pass->end();
}

const std::string& Engine::backward_comm_error() const {
  return impl_->pass->errors().comm;
}

const std::string& Engine::backward_io_error() const {
  return impl_->pass->errors().io;
}

void Engine::fail_backward(const std::string& reason) noexcept {
  if (!impl_->in_use()) return;  // return_unit() has discarded the gradients
  const Ranks& ranks = impl_->ranks;
  if (ranks.all.world_size() > 1) {
    log(LogLevel::kWarning, concat("rank ", ranks.all.rank(), ": backward failed, and all ranks discard it: ", reason));
  }
  try {
    if (impl_->options.on_failed_backward) impl_->options.on_failed_backward(reason);
    impl_->pass->end(reason.empty() ? "an error without a text" : reason);
  } catch (const std::exception& error) {  // makes later collectives fail with this text on all ranks
    const std::string text = concat("the failed backward could not be discarded: ", error.what());
    ranks.fail_all(text);
    log(LogLevel::kWarning, text);
  }
}

at::Tensor Engine::scale_loss(const at::Tensor& loss) const {
  return scale_loss(loss, impl_->pass->progress().counts().batch.accumulation);
}

at::Tensor Engine::scale(const at::Tensor& loss) {
  at::Tensor scaled = loss * loss_scale();
  const int64_t micro_batches = impl_->pass->progress().counts().batch.accumulation;
  // The gradient of the loss is divided before it enters the model, because gradients in the model may be fp16.
  mark_scaled_loss(scaled, [micro_batches](const at::Tensor& grad) {
    return micro_batches > 1 ? grad / double(micro_batches) : grad;
  });
  return scaled;
}

at::Tensor Engine::scale_loss(const at::Tensor& loss, int64_t micro_batches) const {
  ZS_CHECK(micro_batches >= 1, "micro_batches must be positive, got ", micro_batches);
  at::Tensor scaled = micro_batches > 1 ? loss / double(micro_batches) : loss;
  if (loss_scale() != 1) scaled = scaled * loss_scale();
  // The backward of this loss may pass through models of other engines. These engines must neither divide the gradients
  // again nor refuse them as unscaled.
  if (!scaled.is_same(loss)) mark_scaled_loss(scaled, [](const at::Tensor& grad) { return grad; });
  return scaled;
}

void Engine::backward(const at::Tensor& loss) {
  begin_backward();
  try {
    scale_loss(loss).backward();
  } catch (const std::exception& error) {
    fail_backward(error.what());
    throw;
  }
  end_backward();
  impl_->pass->progress().end_own_pass();
}

void Engine::zero_grad() {
  impl_->check_in_use();
  impl_->pass->zero_grad();
}

void Engine::end_micro_batch() {
  impl_->check_in_use();
  impl_->pass->progress().end_micro_batch();
}

Progress& Engine::progress() {
  return impl_->pass->progress().counts();
}
const Progress& Engine::progress() const {
  return impl_->pass->progress().counts();
}

Progress Engine::progress_at_last_step() const {
  return impl_->pass->progress().at_last_step();
}

void Engine::restore_progress(const NamedCounts& saved, int64_t step) {
  impl_->pass->progress().restore(saved, step);
}

void Engine::set_train_batch_size(int64_t samples) {
  impl_->pass->progress().set_train_batch_size(samples, impl_->options.config);
}

void Engine::set_micro_batch_size(int64_t samples) {
  impl_->pass->progress().set_micro_batch_size(samples);
}

bool Engine::has_plain_gradients() const {
  return impl_->pass->progress().has_plain_gradients();
}

}  // namespace zeroshard
