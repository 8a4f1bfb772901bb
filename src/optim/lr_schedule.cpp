#include "optim/lr_schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>

#include "base/check.h"

namespace zeroshard {
namespace {

// In this file, `group` is the number of the param group, and `initial_lr` is the group's own rate, which only some
// schedules use.

// Returns the steps of the warm-up. There are at least two, because a logarithmic warm-up of one step would divide by
// log(1), which is 0.
int64_t warmup_steps(int64_t configured) {
  return std::max<int64_t>(2, configured);
}

// Returns the part of the warm-up that is done. The part rises from 0 towards 1 over `steps`, linearly or with the
// logarithm of the iteration. `iteration` must be below `steps`.
double warmup_part(int64_t iteration, int64_t steps, bool log_warmup) {
  const auto at = double(iteration);
  return log_warmup ? 1 / std::log(double(steps)) * std::log(at + 1) : at / double(steps);
}

double between(double low, double high, double part) {
  return low + (high - low) * part;
}

double rate(const WarmupLRConfig& c, int64_t iteration, size_t group, double initial_lr) {
  if (iteration < 0) return c.warmup_min_lr.of(group);
  const int64_t steps = warmup_steps(c.warmup_num_steps);
  const double part = iteration < steps ? warmup_part(iteration, steps, c.log_warmup) : 1;
  return between(c.warmup_min_lr.of(group), c.warmup_max_lr ? c.warmup_max_lr->of(group) : initial_lr, part);
}

double rate(const WarmupDecayLRConfig& c, int64_t iteration, size_t group, double) {
  if (iteration < 0) return c.warmup_min_lr.of(group);
  const int64_t steps = warmup_steps(c.warmup_num_steps);
  const auto decay_steps = double(std::max<int64_t>(1, c.total_num_steps - steps));
  const double part = iteration < steps ? warmup_part(iteration, steps, c.log_warmup)
                                        : std::max(0.0, double(c.total_num_steps - iteration) / decay_steps);
  return between(c.warmup_min_lr.of(group), c.warmup_max_lr.of(group), part);
}

double ratio(const WarmupCosineLRConfig& c, int64_t iteration) {
  if (iteration < 0) return 0;
  const int64_t steps = warmup_steps(c.warmup_num_steps);
  if (iteration < steps) return between(c.warmup_min_ratio, 1, warmup_part(iteration, steps, c.log_warmup));
  const auto decay_steps = double(std::max<int64_t>(1, c.total_num_steps - steps));
  const double progress = std::min(1.0, double(iteration - steps + 1) / decay_steps);
  const double cosine = (1 + std::cos(std::numbers::pi * progress)) / 2;
  return std::max(0.0, between(c.cos_min_ratio, 1, cosine));
}

double rate(const WarmupCosineLRConfig& c, int64_t iteration, size_t, double initial_lr) {
  return initial_lr * ratio(c, iteration);
}

double rate(const LRRangeTestConfig& c, int64_t iteration, size_t group, double) {
  if (iteration < 0) return c.min_lr.of(group);
  double interval = double(iteration + 1) / double(c.step_size);
  if (c.staircase) interval = std::floor(interval);
  return c.min_lr.of(group) * (1 + c.step_rate * interval);
}

// The values of OneCycle: one cycle up and down, followed by a decay. Step n of the cycle is iteration n - 1.
class Cycle {
 public:
  Cycle(const OneCycleConfig& config, size_t group)
      : config_(config),
        min_lr_(config.cycle_min_lr.of(group)),
        max_lr_(config.cycle_max_lr.of(group)),
        min_mom_(config.cycle_min_mom.of(group)),
        max_mom_(config.cycle_max_mom.of(group)),
        first_(config.cycle_first_step_size),
        second_(config.cycle_second_step_size.value_or(first_)),
        first_stairs_(config.cycle_first_stair_count),
        second_stairs_(config.cycle_second_stair_count.value_or(first_stairs_)) {}

  double rate(int64_t iteration) const {
    if (iteration < 0) return min_lr_;
    if (iteration < total()) return between(min_lr_, max_lr_, height(iteration + 1));
    if (config_.decay_step_size == 0) return min_lr_;
    return min_lr_ / (1 + config_.decay_lr_rate * decay_intervals(iteration));
  }

  double momentum(int64_t iteration) const {
    // In the cycle, momentum is highest when the rate is lowest. But before the first step both are at their minimum.
    if (iteration < 0) return min_mom_;
    if (iteration < total()) return between(max_mom_, min_mom_, height(iteration + 1));
    if (config_.decay_step_size == 0) return max_mom_;
    return max_mom_ * (1 + config_.decay_mom_rate * decay_intervals(iteration));
  }

 private:
  int64_t total() const { return first_ + second_; }

  double decay_intervals(int64_t iteration) const {
    return double(iteration - total() + 1) / double(config_.decay_step_size);
  }

  // Returns how far the cycle has risen at a step. This height rises linearly from 0 to 1, and then falls linearly to
  // 0. If stairs are configured, it is rounded down to whole stairs.
  double height(int64_t step) const {
    const int64_t at = step % total();
    const bool rising = at <= first_;
    const int64_t length = rising ? first_ : second_, left = rising ? at : total() - at;
    const int64_t stairs = rising ? first_stairs_ : second_stairs_;
    if (stairs == 0) return double(left) / double(length);
    return std::floor(double(left) * double(stairs) / double(length)) / double(stairs);
  }

  const OneCycleConfig& config_;
  double min_lr_, max_lr_, min_mom_, max_mom_;
  int64_t first_, second_, first_stairs_, second_stairs_;
};

double rate(const OneCycleConfig& c, int64_t iteration, size_t group, double) {
  return Cycle(c, group).rate(iteration);
}

// The settings that can have a value for each param group, by key.
using Given = std::vector<std::pair<const char*, PerGroup>>;

Given given(const WarmupLRConfig& c) {
  return {{"warmup_min_lr", c.warmup_min_lr}, {"warmup_max_lr", c.warmup_max_lr.value_or(0)}};
}
Given given(const WarmupDecayLRConfig& c) {
  return {{"warmup_min_lr", c.warmup_min_lr}, {"warmup_max_lr", c.warmup_max_lr}};
}
Given given(const WarmupCosineLRConfig&) {
  return {};
}
Given given(const OneCycleConfig& c) {
  return {{"cycle_min_lr", c.cycle_min_lr},
          {"cycle_max_lr", c.cycle_max_lr},
          {"cycle_min_mom", c.cycle_min_mom},
          {"cycle_max_mom", c.cycle_max_mom}};
}
Given given(const LRRangeTestConfig& c) {
  return {{"lr_range_test_min_lr", c.min_lr}};
}

}  // namespace

LRSchedule::LRSchedule(SchedulerConfig config, std::vector<double> initial_lrs)
    : config_(std::move(config)), initial_lrs_(std::move(initial_lrs)) {
  ZS_CHECK(!initial_lrs_.empty(), "a learning rate schedule needs the rate of at least one param group");
  for (const auto& [key, value] : std::visit([](const auto& c) { return given(c); }, config_)) {
    ZS_CHECK(value.each.empty() || value.each.size() == initial_lrs_.size(), "scheduler.params.", key, " is a list of ",
             value.each.size(), ", and the optimizer has ", initial_lrs_.size(),
             " param groups: give one number for each, or one for all");
  }
}

std::vector<double> LRSchedule::lrs(int64_t iteration) const {
  ZS_CHECK(iteration >= -1, "the iteration of a schedule starts at -1, got ", iteration);
  std::vector<double> rates;
  rates.reserve(initial_lrs_.size());
  for (size_t group = 0; group < initial_lrs_.size(); ++group) {
    const auto of_group = [&](const auto& config) { return rate(config, iteration, group, initial_lrs_[group]); };
    rates.push_back(std::visit(of_group, config_));
  }
  return rates;
}

std::optional<LRSchedule::Betas> LRSchedule::betas(int64_t iteration, size_t group) const {
  ZS_CHECK(iteration >= -1, "the iteration of a schedule starts at -1, got ", iteration);
  ZS_CHECK(group < initial_lrs_.size(), "there are ", initial_lrs_.size(), " param groups, and no ", group);
  const auto* cycle = std::get_if<OneCycleConfig>(&config_);
  if (!cycle || !cycle->cycle_momentum) return std::nullopt;
  constexpr double kBeta2 = 0.99;
  return Betas{Cycle(*cycle, group).momentum(iteration), kBeta2};
}

}  // namespace zeroshard
