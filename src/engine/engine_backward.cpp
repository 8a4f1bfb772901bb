#include <algorithm>
#include <array>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "engine/impl.h"

// Ends a backward pass in the same way on all ranks: it counts, or if it failed on one rank, all ranks discard it.
namespace zeroshard {
namespace {

constexpr int64_t kReasonBytes = 512;

// Returns the `reason` of rank `root` on every rank.
std::string share_reason(Comm& comm, int root, const std::string& reason) {
  std::string text = reason.substr(0, kReasonBytes - 1);
  text.resize(kReasonBytes, 0);
  comm.host().broadcast({text.data(), kReasonBytes, DType::kOther1}, root, "failed backward")->wait();
  return text.c_str();
}

// `failure` is the result of end_pass().
void throw_discarded(const std::string& failure) {
  if (failure.empty()) return;
  throw StateError(
      concat("a backward pass was discarded on all ranks, with all that this step had before it, because of ", failure,
             ". To go on, begin the step again"));
}

}  // namespace

// `failure` says why this rank's pass failed; empty if it did not. Returns the failure of the first rank that has one,
// with its number, on every rank. In that case all gradients since the last step are discarded.
std::string Engine::Impl::end_pass(const std::string& failure) {
  try {
    executor->end_backward();
  } catch (const CommError& error) {
    explain_backward(error, "end its backward pass");
  }
  return end_reductions(failure);
}

std::string Engine::Impl::end_reductions(const std::string& failure) {
  try {
    reducer->launch_all(progress.syncs());
  } catch (const CommError& error) {
    explain_backward(error, "end its backward pass");
  }
  const std::vector<int64_t> late = progress.syncs() ? reducer->late() : std::vector<int64_t>();
  const bool is_late = std::any_of(late.begin(), late.end(), [](int64_t each) { return each != 0; });
  const int world_size = ranks.reduce.world_size();
  std::vector<int64_t> words = {failure.empty() ? 0 : world_size - ranks.reduce.rank(), is_late ? 1 : 0};
  if (world_size > 1) words = all_reduce(ranks.reduce, words, ReduceOp::kMax, "end of backward");
  if (words[0] > 0) {
    const int rank = world_size - int(words[0]);
    const std::string reason = share_reason(ranks.reduce, rank, failure);
    reducer->launch_all(true);  // also takes part in reductions that began in spite of no_sync
    executor->forget_pass();
    discard();
    return concat("rank ", rank, ": ", reason);
  }
  if (words[1] > 0) {
    reducer->launch_again(world_size == 1 ? late : all_reduce(ranks.reduce, late, ReduceOp::kMax, "late gradients"));
  }
  reducer->end_backward(progress.syncs());
  if (progress.syncs()) has_other_pass = false;
  ++passes;
  show_gradients();
  ended_before_gradients.clear();
  const std::array<Comm*, 2> comms = {&ranks.reduce, &ranks.gather};
  compare_histories(comms, "end of backward");
  progress.end_pass();
  return "";
}

void Engine::Impl::end_launched() {
  throw_discarded(end_reductions(""));
}

void Engine::Impl::explain_backward(const CommError& error, const std::string& doing) {
  std::string text = error.what();
  if (text.find("ranks disagree") != text.npos)
    text += concat("; rank ", ranks.gather.rank(), " was about to ", doing,
                   ". Backward passes of ranks may differ in units that some rank's needed in the pass before: where a "
                   "module enters the loss on some ranks alone, and later than that, add its output times 0 to the "
                   "loss of the others");
  backward_comm_error = text;
  throw CommError(text);
}

template <typename Call>
void Engine::Impl::in_hook(std::string_view doing, size_t unit, const Call& call) {
  try {
    call();
  } catch (const IoError& error) {
    backward_io_error = error.what();
    throw;
  } catch (const CommError& error) {
    explain_backward(error, concat(doing, " of unit '", plan.layouts[unit].name, "'"));
  }
}

void Engine::Impl::pre_backward(size_t unit, int64_t output, int64_t publishes_at_forward) {
  const WithoutTransforms plain_tensors;
  in_hook("compute the gradients", unit, [&] {
    if (publishes != publishes_at_forward) refuse_other_parameters();
    executor->pre_backward(unit, output);
  });
}

// See Note [Backward passes that are none of the engine's].
void Engine::Impl::end_unit_of_backward(size_t unit) {
  if (!progress.syncs()) return;
  const bool is_own = progress.is_in_pass() || progress.has_open_gradients();
  if (!is_own && !executor->is_sharded()) return ended_before_gradients.push_back(unit);
  if (!is_own) has_other_pass = true;
  reducer->flush(unit);
}

void Engine::Impl::before_gradient() {
  if (progress.is_in_pass()) return;
  discard_failed_pass();
  if (!progress.has_open_gradients()) begin_plain_pass();
}

void Engine::Impl::discard_failed_pass() {
  if (progress.is_in_pass() || !progress.has_open_gradients() || !plain_pass.expired()) return;
  log(LogLevel::kWarning, concat("rank ", ranks.reduce.rank(),
                                 ": loss.backward() failed, and all ranks discard it and what the step had before it"));
  end_pass("a loss.backward() that failed");
}

void Engine::Impl::begin_plain_pass() {
  const bool is_scaled = is_of_scaled_loss();
  if (const double scale = scaler.scale(); options.config.fp16.enabled && scale != 1 && !is_scaled)
    throw StateError(concat("loss.backward() was called on a loss without the loss scale, ", scale,
                            ": call engine.backward(loss), or engine.scale(loss).backward()"));
  plain_divisor = is_scaled ? 1 : double(progress.counts().batch.accumulation);
  hide_gradients();
  const auto pass = std::make_shared<char>();  // destroyed with the pass, even if the pass fails
  plain_pass = pass;
  call_at_end_of_backward([this, alive = std::weak_ptr(in_use), pass] {
    if (!alive.expired()) end_plain_pass();
  });
}

void Engine::Impl::end_plain_pass() {
  if (progress.has_open_gradients() && !progress.is_in_pass()) throw_discarded(end_pass(""));
}

void Engine::Impl::add_gradient(size_t unit, size_t param, const at::Tensor& grad) {
  const double divisor = progress.is_in_pass() ? 1 : plain_divisor;
  progress.add_gradient();
  last_grad_scale.reset();
  ZS_CHECK(
      grad.layout() == at::kStrided, "parameter '", plan.layouts[unit].params[param].name(),
      "' got a sparse gradient, and only dense ones are reduced: build its embedding with sparse=False, or let its "
      "backward return grad.to_dense()");
  in_hook("add a gradient", unit, [&] {
    for (const size_t ended : std::exchange(ended_before_gradients, {})) reducer->flush(ended);
    reducer->add(unit, param, divisor > 1 ? grad / divisor : grad, progress.syncs());
  });
}

std::string Engine::Impl::assigned_gradient() const {
  for (size_t u = 0; u < plan.layouts.size(); ++u) {
    for (size_t i = 0; i < plan.layouts[u].params.size(); ++i) {
      const std::vector<at::Tensor>& tensors = executor->unit(u).tensors(i);
      const auto has_one = [&](const at::Tensor& tensor) {
        return tensor.grad().defined() && !stand_ins.shows(tensor);
      };
      if (std::ranges::any_of(tensors, has_one)) return plan.layouts[u].params[i].name();
    }
  }
  return "";
}

void Engine::Impl::drop_assigned_gradients() {
  stand_ins.end();
  for (size_t u = 0; u < plan.layouts.size(); ++u)
    for (size_t i = 0; i < plan.layouts[u].params.size(); ++i)
      for (const at::Tensor& tensor : executor->unit(u).tensors(i)) tensor.mutable_grad().reset();
}

void Engine::Impl::take_dropped() {
  for (const auto& [unit, param] : stand_ins.taken_away()) {
    reducer->drop(unit, param);
    dropped.push_back(concat(plan.layouts[unit].params[param].name(), " behind pass ", passes, " of the step"));
  }
  std::ranges::sort(dropped);  // ranks that dropped the same ones in another order agree
}

void Engine::Impl::hide_gradients() {
  take_dropped();
  stand_ins.take_back();
}

void Engine::Impl::show_gradients() {
  stand_ins.show([this](GradientStandIns::Place place) { return reducer->has_grad(place.unit, place.param); });
}

void Engine::Impl::discard() {
  reducer->discard();
  has_other_pass = false;
  last_grad_scale.reset();
  drop_assigned_gradients();  // a gradient remains there if a hook of the user threw
  dropped.clear();
  passes = 0;
  progress.discard();
}

void Engine::begin_backward(bool sync) {
  impl_->check_whole();
  // Within a pass that reduces nothing, other ranks may never reach the collectives that they wait for. So those end
  // here.
  if (!sync && impl_->progress.has_open_gradients()) impl_->end_launched();
  // A late update waits for a save that reads its states, and gradients wait for that update. This wait can be
  // interrupted.
  if (impl_->memory->states_in_files && impl_->async_saver && impl_->async_saver->busy()) impl_->await_update();
  impl_->discard_failed_pass();
  if (!impl_->progress.has_open_gradients()) impl_->hide_gradients();
  impl_->progress.begin_pass(sync);
  impl_->ended_before_gradients.clear();
  impl_->last_grad_scale.reset();
  impl_->backward_comm_error.clear();
  impl_->backward_io_error.clear();
  impl_->executor->begin_backward();
  if (impl_->memory->activations) impl_->memory->activations->begin_backward();
  // If gradients of an earlier loss.backward() are being reduced, the present order is kept.
  if (!impl_->progress.has_open_gradients()) {
    impl_->reducer->begin_backward(impl_->executor->needed(), sync, impl_->ranks.gather);
    if (sync) impl_->read_gradients_ahead();
  }
}

void Engine::end_backward() {
  impl_->ranks.check_caller();
  throw_discarded(impl_->end_pass(""));
}

const std::string& Engine::backward_comm_error() const {
  return impl_->backward_comm_error;
}

const std::string& Engine::backward_io_error() const {
  return impl_->backward_io_error;
}

void Engine::fail_backward(const std::string& reason) noexcept {
  if (impl_->ranks.reduce.world_size() > 1) {
    log(LogLevel::kWarning,
        concat("rank ", impl_->ranks.reduce.rank(), ": backward failed, and all ranks discard it: ", reason));
  }
  try {
    if (impl_->options.on_failed_backward) impl_->options.on_failed_backward(reason);
    impl_->end_pass(reason.empty() ? "an error without a text" : reason);
  } catch (const std::exception& error) {  // from now on every call fails with this text, on all ranks
    const std::string text = concat("the failed backward could not be discarded: ", error.what());
    impl_->ranks.fail_all(text);
    log(LogLevel::kWarning, text);
  }
}

at::Tensor Engine::scale_loss(const at::Tensor& loss) const {
  return scale_loss(loss, impl_->progress.counts().batch.accumulation);
}

at::Tensor Engine::scale(const at::Tensor& loss) {
  at::Tensor scaled = loss * loss_scale();
  const int64_t micro_batches = impl_->progress.counts().batch.accumulation;
  // The division happens before the gradient enters the model, because it may be fp16 there.
  mark_scaled_loss(scaled, [micro_batches](const at::Tensor& grad) {
    return micro_batches > 1 ? grad / double(micro_batches) : grad;
  });
  return scaled;
}

at::Tensor Engine::scale_loss(const at::Tensor& loss, int64_t micro_batches) const {
  ZS_CHECK(micro_batches >= 1, "micro_batches must be positive, got ", micro_batches);
  at::Tensor scaled = micro_batches > 1 ? loss / double(micro_batches) : loss;
  if (loss_scale() != 1) scaled = scaled * loss_scale();
  // The backward of this loss may pass through models of other engines, which must not scale the gradients again.
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
  impl_->progress.end_own_pass();
}

void Engine::zero_grad() {
  Impl& impl = *impl_;
  impl.ranks.check_caller();
  const int64_t before = impl.progress.micro_batches();
  if (impl.progress.has_open_gradients() || impl.executor->is_in_backward()) {
    impl.end_pass("zero_grad() was called");
  } else if (impl.progress.is_unapplied()) {
    impl.discard();
  } else {
    impl.drop_assigned_gradients();
  }
  if (before == 0 || impl.progress.micro_batches() > 0 || std::exchange(impl.warned_of_discards, true)) return;
  log(LogLevel::kWarning,
      concat("zero_grad() discarded the gradients of ", before, " micro-batch(es) of a step of ",
             progress().batch.accumulation, ", which begins again: between its micro-batches, leave it out"));
}

void Engine::end_micro_batch() {
  impl_->ranks.check_caller();
  impl_->progress.end_micro_batch();
}

Progress& Engine::progress() {
  return impl_->progress.counts();
}
const Progress& Engine::progress() const {
  return impl_->progress.counts();
}

Progress Engine::progress_at_last_step() const {
  return impl_->progress.at_last_step();
}

void Engine::restore_progress(const NamedCounts& saved, int64_t step) {
  impl_->progress.restore(saved, step);
}

void Engine::set_train_batch_size(int64_t samples) {
  impl_->progress.set_train_batch_size(samples, impl_->options.config);
}

void Engine::set_micro_batch_size(int64_t samples) {
  impl_->progress.set_micro_batch_size(samples);
}

bool Engine::has_plain_gradients() const {
  return impl_->progress.has_plain_gradients();
}

}  // namespace zeroshard
