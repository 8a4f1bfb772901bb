#include "engine/pass.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "engine/consensus.h"

namespace zeroshard {
namespace {

constexpr int64_t kReasonBytes = 512;

// Returns the first 511 bytes of the `reason` of rank `root` on every rank.
std::string share_reason(Comm& comm, int root, const std::string& reason) {
  std::string text = reason.substr(0, kReasonBytes - 1);
  text.resize(kReasonBytes, 0);
  comm.host().broadcast({text.data(), kReasonBytes, DType::kOther1}, root, "failed backward")->wait();
  return text.c_str();
}

// Throws StateError for a backward whose forward ran before an update was published outside of a step.
[[noreturn]] void refuse_other_parameters() {
  throw StateError(
      "backward() would use other parameters than its forward pass, because the last step's update "
      "(zeroshard.offload.delayed_update) was applied between them. Saves, exports, loads and "
      "zeroshard.gathered(..., modify_rank=...) apply the update. Call these before the forward pass or after step(), "
      "and begin this step again");
}

}  // namespace

Pass::Pass(const Config& config, const Ranks& ranks, Executor& executor, Reducer& reducer)
    : ranks_(ranks),
      executor_(executor),
      reducer_(reducer),
      scaler_(config.fp16),
      progress_(config, ranks.all.world_size()),
      gradients_(executor, reducer) {}

void Pass::install_hooks(const std::vector<UnitDefinition>& units) {
  hooks_.of_units.resize(executor_.size());
  for (const ParamPlace place : executor_.params()) {
    if (!units[place.unit].params[place.param].requires_grad) continue;
    std::vector<GradHook>& hooks = hooks_.of_units[place.unit];
    for (const at::Tensor& tensor : executor_.tensors(place)) {
      if (!executor_.spec(place).requires_grad) {  // no optimizer updates it, so its gradient is dropped
        hooks.push_back({tensor, {[] {}, [](const at::Tensor&) {}}});
        continue;
      }
      gradients_.add(tensor, place, executor_.spec(place).name());
      const auto take = [this, place](const at::Tensor& grad) { add_gradient(place, grad); };
      hooks.push_back({tensor, {[this] { before_gradient(); }, take}});
    }
  }
}

void Pass::renew_hooks(size_t unit) const {
  if (!hooks_.alive) return;
  for (const GradHook& hook : hooks_.of_units[unit]) hook.renew();
}

void Pass::add_output(size_t unit, const at::Tensor& output) {
  // The hook checks whether the engine is alive, because the autograd graph may outlive it.
  hooks_.of_outputs.add(
      output, [this, alive = std::weak_ptr(hooks_.alive), unit, publishes = hooks_.publishes](int64_t tensor) {
        if (!alive.expired()) pre_backward(unit, tensor, publishes);
      });
}

void Pass::remove_hooks() {
  hooks_ = Hooks();
  hooks_.alive.reset();
  gradients_.forget();
}

void Pass::begin_forward(bool training) {
  if (training) last_grad_scale_.reset();
  for (size_t unit = 0; unit < hooks_.of_units.size(); ++unit) renew_hooks(unit);
  executor_.begin_pass(training);
  other_.ended.clear();
}

void Pass::begin(bool sync) {
  discard_failed();
  if (!progress_.has_open_gradients()) gradients_.hide();
  progress_.begin_pass(sync);
  other_.ended.clear();
  last_grad_scale_.reset();
  errors_ = {};
  executor_.begin_backward();
  // If earlier gradients are still open, their reductions may have begun, so the reducer keeps the order that it has.
  if (progress_.has_open_gradients()) return;
  reducer_.begin_backward(executor_.needed(), sync, ranks_.gather);
  if (sync) reducer_.read_ahead();
}

void Pass::zero_grad() {
  const int64_t before = progress_.micro_batches();
  if (progress_.has_open_gradients() || executor_.is_in_backward()) {
    end("zero_grad() was called");
  } else if (progress_.is_unapplied()) {
    discard();
  } else {
    gradients_.clear_grads();
  }
  if (before == 0 || progress_.micro_batches() > 0 || std::exchange(warned_of_discards_, true)) return;
  log(LogLevel::kWarning,
      concat("zero_grad() discarded the gradients of ", before, " micro-batch(es) of a step of ",
             progress_.counts().batch.accumulation, ", which begins again: between its micro-batches, leave it out"));
}

template <typename Call>
void Pass::in_hook(std::string_view doing, size_t unit, const Call& call) {
  try {
    call();
  } catch (const IoError& error) {
    errors_.io = error.what();
    throw;
  } catch (const CommError& error) {
    explain_backward(error, concat(doing, " of unit '", executor_.unit(unit).layout().name, "'"));
  }
}

std::string Pass::end(const std::string& failure) {
  try {
    executor_.end_backward();
  } catch (const CommError& error) {
    explain_backward(error, "end its backward pass");
  }
  return end_reductions(failure);
}

std::string Pass::end_reductions(const std::string& failure) {
  try {
    reducer_.launch_all(progress_.syncs());
  } catch (const CommError& error) {
    explain_backward(error, "end its backward pass");
  }
  const std::vector<int64_t> late = progress_.syncs() ? reducer_.late() : std::vector<int64_t>();
  const bool is_late = std::any_of(late.begin(), late.end(), [](int64_t each) { return each != 0; });
  const int world_size = ranks_.all.world_size();
  std::vector<int64_t> words = {failure.empty() ? 0 : world_size - ranks_.all.rank(), is_late ? 1 : 0};
  if (world_size > 1) words = all_reduce(ranks_.all, words, ReduceOp::kMax, "end of backward");
  if (words[0] > 0) {
    const int rank = world_size - int(words[0]);
    const std::string reason = share_reason(ranks_.all, rank, failure);
    reducer_.launch_all(true);  // even under no_sync, because other ranks may have begun reductions
    executor_.forget_pass();
    discard();
    return concat("rank ", rank, ": ", reason);
  }
  if (words[1] > 0) {
    reducer_.launch_again(world_size == 1 ? late : all_reduce(ranks_.all, late, ReduceOp::kMax, "late gradients"));
  }
  reducer_.end_backward(progress_.syncs());
  if (progress_.syncs()) other_.told_reducer = false;
  gradients_.end_pass();
  other_.ended.clear();
  ranks_.compare_histories("end of backward");
  progress_.end_pass();
  return "";
}

void Pass::explain_backward(const CommError& error, const std::string& doing) {
  std::string text = error.what();
  if (text.find("ranks disagree") != text.npos)
    text += concat("; rank ", ranks_.all.rank(), " was about to ", doing,
                   ". Backward passes of ranks may differ in units that some rank's needed in the pass before: where a "
                   "module enters the loss on some ranks alone, and later than that, add its output times 0 to the "
                   "loss of the others");
  errors_.comm = text;
  throw CommError(text);
}

void Pass::pre_backward(size_t unit, int64_t output, int64_t publishes_at_forward) {
  const WithoutTransforms plain_tensors;
  in_hook("compute the gradients", unit, [&] {
    if (publishes_at_forward != hooks_.publishes) refuse_other_parameters();
    executor_.pre_backward(unit, output);
  });
}

void Pass::end_unit_backward(size_t unit) {
  if (!progress_.syncs()) return;
  const bool is_own = progress_.is_in_pass() || progress_.has_open_gradients();
  if (!is_own && !executor_.has_sharded_units()) return other_.ended.push_back(unit);
  if (!is_own) other_.told_reducer = true;
  reducer_.end_unit_backward(unit);
}

void Pass::before_gradient() {
  if (progress_.is_in_pass()) return;
  discard_failed();
  if (!progress_.has_open_gradients()) begin_plain_pass();
}

void Pass::throw_discarded(const std::string& failure) {
  if (failure.empty()) return;
  throw StateError(concat(
      "a backward pass was discarded on all ranks, and all gradients since the last step with it. To go on, begin "
      "the step again. The reason, from ",
      failure));
}

void Pass::discard_failed() {
  if (progress_.is_in_pass() || !progress_.has_open_gradients() || !plain_.pass.expired()) return;
  log(LogLevel::kWarning, concat("rank ", ranks_.all.rank(),
                                 ": loss.backward() failed, and all ranks discard it and what the step had before it"));
  end("a loss.backward() that failed");
}

void Pass::begin_plain_pass() {
  const bool is_scaled = is_of_scaled_loss();
  if (const double scale = scaler_.scale(); scale != 1 && !is_scaled)
    throw StateError(concat("loss.backward() was called on a loss without the loss scale, ", scale,
                            ": call engine.backward(loss), or engine.scale(loss).backward()"));
  plain_.divisor = is_scaled ? 1 : double(progress_.counts().batch.accumulation);
  gradients_.hide();
  const auto pass = std::make_shared<char>();  // destroyed with the pass, even if the pass fails
  plain_.pass = pass;
  call_at_end_of_backward([this, alive = std::weak_ptr(hooks_.alive), pass] {
    if (!alive.expired()) end_plain_pass();
  });
}

void Pass::end_plain_pass() {
  if (progress_.has_open_gradients() && !progress_.is_in_pass()) throw_discarded(end(""));
}

void Pass::add_gradient(ParamPlace place, const at::Tensor& grad) {
  const double divisor = progress_.is_in_pass() ? 1 : plain_.divisor;
  progress_.add_gradient();
  last_grad_scale_.reset();
  ZS_CHECK(
      grad.layout() == at::kStrided, "parameter '", executor_.spec(place).name(),
      "' got a sparse gradient, and only dense ones are reduced: build its embedding with sparse=False, or let its "
      "backward return grad.to_dense()");
  in_hook("add a gradient", place.unit, [&] {
    for (const size_t ended : std::exchange(other_.ended, {})) reducer_.end_unit_backward(ended);
    reducer_.add(place.unit, place.param, divisor > 1 ? grad / divisor : grad, progress_.syncs());
  });
}

void Pass::discard() {
  reducer_.discard();
  other_.told_reducer = false;
  last_grad_scale_.reset();
  gradients_.discard();
  progress_.discard();
}

void Pass::end_step(double loss_scale) {
  gradients_.end_step();
  last_grad_scale_ = loss_scale;
}

void Pass::check_reduced(const ParamSpec& param) const {
  if (progress_.is_unsynced())
    throw StateError(concat("the gradient of '", param.name(),
                            "' is on this rank only: the last backward was within no_sync(), or within "
                            "coalesce_grad_reduction() that has not ended. Ask for it after one that is reduced"));
  if (!progress_.is_in_pass() && !progress_.has_open_gradients() && !other_.told_reducer) return;
  throw StateError(concat("the gradient of '", param.name(),
                          "' is not reduced yet: ask for it when engine.backward(loss) has returned. Passes of "
                          "loss.backward(), and at stage 3 of torch.autograd.grad(), end only with the step"));
}

}  // namespace zeroshard
