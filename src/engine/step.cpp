#include "engine/step.h"

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "base/log.h"
#include "device/cpu_allocator.h"
#include "engine/agreement.h"
#include "engine/same_on_ranks.h"
#include "zeroshard/rank_observer.h"

namespace zeroshard {
namespace {

// Returns the settings as text, with enough digits that different values have different texts.
NamedValues settings_of(const std::vector<ParamGroupOptions>& groups) {
  NamedValues settings;
  for (size_t i = 0; i < groups.size(); ++i) {
    ParamGroupOptions::for_each([&](const char* name, auto member) {
      std::array<char, 32> text;
      const auto end = std::to_chars(text.data(), text.data() + text.size(), double(groups[i].*member)).ptr;
      settings.emplace_back(concat(name, " of group ", i), std::string(text.data(), end));
    });
  }
  return settings;
}

}  // namespace

StepResult Step::prepare(const std::vector<ParamGroupOptions>& groups, bool save_failed) {
  executor_.end_gathers_ahead();
  reducer_.gather_reduced();
  std::vector<std::vector<bool>> has_grad;
  for (const GradBucket& bucket : reducer_.buckets()) {
    std::vector<bool>& flags = has_grad.emplace_back();
    for (size_t i = 0; i < bucket.group().params.size(); ++i) flags.push_back(bucket.has_grad(i));
  }
  const StepSignals signals{save_failed, stop_requested_.load(),
                            writes_.any_written() || (update_.is_pending() && writes_.wrote_late()),
                            !pass_.gradients().assigned().empty()};
  const StepState state{pass_.progress().is_unapplied(), hash(groups)};
  ranks_.await_gradients();
  consensus_ = agree_on_step(ranks_.all, ranks_.is_in_first_replica() ? reducer_.squares() : ExactSum(),
                             std::move(has_grad), signals, state);
  check(groups);
  if (consensus_.signals.wrote && update_.is_pending()) writes_.check_late();
  compare_replicated_units();
  writes_.take(consensus_.signals.wrote);
  // If no update is pending, the master weights take the writes of users now. After this step has handed its update to
  // the thread, wrote_late() finds later writes by comparing checksums with those of the present parameters.
  if (update_.is_delayed() && !update_.is_pending()) {
    writes_.take_to_groups();
    writes_.remember_open_parameters();
  }
  if (!options_.external_optimizer.empty()) {
    writes_.take_to_groups();
    memory_.groups->await_copies();  // the external optimizer writes to states directly
  }
  StepResult result;
  result.loss_scale = pass_.scaler().scale();
  result.applied = consensus_.finite;
  result.stop = consensus_.signals.stop;
  result.save_failed = consensus_.signals.save_failed;
  result.grad_norm =
      result.applied ? std::sqrt(consensus_.squares) / result.loss_scale : std::numeric_limits<double>::quiet_NaN();
  const double clip = options_.config.gradient_clipping;
  // torch.nn.utils.clip_grad_norm_ also computes in fp32 and adds this epsilon to the norm.
  const float coefficient = clip > 0 ? float(clip) / (float(result.grad_norm) + 1e-6F) : 1;
  grad_scale_ = std::min(coefficient, 1.0F) / float(result.loss_scale);
  return result;
}

void Step::finish(const StepResult& result, const std::function<void()>& apply) {
  ranks_.check_caller();
  // A step without a backward does not change the loss scale, because it says nothing about overflows.
  if (pass_.progress().is_unapplied()) pass_.scaler().update(!result.applied);
  if (result.applied) apply();
  if (result.applied && !update_.is_delayed()) update_.tell_autograd(&consensus_.has_grad);
  writes_.forget_held();
  reducer_.end_step();
  pass_.end_step(result.loss_scale);
  pass_.progress().end_step(result.applied);
  end_cpu_memory_step();
  if (options_.observer) options_.observer->step_finished(pass_.progress().counts().global_steps);
  if (!result.applied) report_skip(result.loss_scale);
}

// Hashes the values that must be the same on all ranks at a step: which parameters require a gradient, which gradients
// the user has dropped, and the settings of the param groups.
uint32_t Step::hash(const std::vector<ParamGroupOptions>& groups) const {
  uint64_t hash = 0;
  const auto add = [&](uint64_t value) { hash = (hash ^ (hash >> 29)) * 0x9E3779B97F4A7C15ULL + value; };
  for (const at::Tensor& tensor : pass_.gradients().tensors()) add(tensor.requires_grad() ? 1 : 2);
  for (const std::string& name : pass_.gradients().dropped()) add(std::hash<std::string>()(name));
  for (const ParamGroupOptions& group : groups)
    ParamGroupOptions::for_each([&](const char*, auto member) { add(std::bit_cast<uint64_t>(double(group.*member))); });
  return uint32_t((hash ^ (hash >> 29)) * 0x9E3779B97F4A7C15ULL >> 32);
}

// Throws ValueError on all ranks if the hashed values differ. Throws StateError on all ranks if the user gave a
// parameter a gradient, or if only some ranks have gradients. Call it after the consensus, whose results are the same
// on all ranks.
void Step::check(const std::vector<ParamGroupOptions>& groups) const {
  if (!consensus_.same_hash) {
    NamedValues now;
    for (const ParamPlace place : executor_.params()) {
      const bool is_frozen = !executor_.tensors(place).front().requires_grad();
      now.emplace_back(executor_.spec(place).name(), is_frozen ? "frozen" : "to be trained");
    }
    check_agreement(ranks_.all, "parameters that require a gradient", now);
    check_agreement(ranks_.all, "param groups of the optimizer", settings_of(groups));
    NamedValues without;
    for (const std::string& name : pass_.gradients().dropped())
      without.emplace_back(name, "dropped (param.grad = None)");
    check_agreement(ranks_.all, "gradients that were dropped", without);
  }
  if (consensus_.signals.assigned) {
    const std::string name = pass_.gradients().assigned();
    throw StateError(concat(name.empty() ? "on another rank a parameter" : concat("parameter '", name, "'"),
                            " was given a gradient (param.grad = ...), which step() does not use: it has the gradients "
                            "of backward passes. Set it to None, or call zero_grad(), and use "
                            "zeroshard.set_gradient(param, values)"));
  }
  if (consensus_.some_have_gradients == consensus_.all_have_gradients) return;
  throw StateError(concat("step(): only some ranks have gradients since the last step, and rank ", ranks_.all.rank(),
                          pass_.progress().is_unapplied() ? " has some" : " has none",
                          ". Call backward and zero_grad on every rank as often as on the others"));
}

// Once in config.check_replicas_every steps (never if that is 0), compares the parameters of kReplicated units among
// ranks. Throws StateError on all ranks if they differ. Call it before the update, because at stages 1 and 2 the
// refresh after the update overwrites the elements that other ranks update, and so hides any difference there.
void Step::compare_replicated_units() {
  const int every = options_.config.check_replicas_every;
  if (every == 0 || ++uncompared_steps_ < every) return;
  uncompared_steps_ = 0;
  std::vector<std::pair<std::string, at::Tensor>> replicas;
  for (const ParamPlace place : executor_.params())
    if (executor_.unit(place.unit).placement() == Placement::kReplicated)
      replicas.emplace_back(executor_.spec(place).name(), executor_.tensors(place).front());
  check_same_on_ranks(
      ranks_.all, replicas,
      "The memory of a rank is faulty, or code wrote into the parameter on one rank alone. Go on from the last "
      "checkpoint (zeroshard.check_replicas_every)");
}

void Step::report_skip(double scale) {
  const std::string bad = find_non_finite(ranks_.all, memory_.groups->trained(), reducer_.buckets());
  const std::string where = bad.empty() ? "" : concat(" in '", bad, "'");
  const std::string fp16 =
      options_.config.fp16.enabled ? concat(", loss scale ", scale, " -> ", pass_.scaler().scale()) : "";
  const std::string message = concat("step skipped on all ranks: the gradient is not finite", where, fp16);
  if (ranks_.all.rank() == 0) log(LogLevel::kWarning, message);
  const int skipped = pass_.progress().skipped_in_a_row();
  if (skipped < options_.config.max_skipped_steps) return;
  throw StateError(concat(message, "; ", skipped,
                          " steps in a row were skipped (zeroshard.max_skipped_steps). Lower the "
                          "learning rate, look for inf or NaN in the data, or train in bf16"));
}

}  // namespace zeroshard
