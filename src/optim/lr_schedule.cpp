#include "optim/lr_schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/check.h"

namespace zeroshard {
namespace {

// `initial_lr` below: the param group's own rate, which only some schedules use.

// A warm-up of one step would divide by log(1).
int64_t warmup_steps(int64_t configured) {
  return std::max<int64_t>(2, configured);
}

// Rises from 0 over `steps`; only for iterations below `steps`.
double warmup_part(int64_t iteration, int64_t steps, bool log_warmup) {
  const auto at = double(iteration);
  return log_warmup ? 1 / std::log(double(steps)) * std::log(at + 1) : at / double(steps);
}

double between(double low, double high, double part) {
  return low + (high - low) * part;
}

double rate(const WarmupLRConfig& c, int64_t iteration, double initial_lr) {
  if (iteration < 0) return c.warmup_min_lr;
  const int64_t steps = warmup_steps(c.warmup_num_steps);
  const double part = iteration < steps ? warmup_part(iteration, steps, c.log_warmup) : 1;
  return between(c.warmup_min_lr, c.warmup_max_lr.value_or(initial_lr), part);
}

double rate(const WarmupDecayLRConfig& c, int64_t iteration, double) {
  if (iteration < 0) return c.warmup_min_lr;
  const int64_t steps = warmup_steps(c.warmup_num_steps);
  const auto decay_steps = double(std::max<int64_t>(1, c.total_num_steps - steps));
  const double part = iteration < steps ? warmup_part(iteration, steps, c.log_warmup)
                                        : std::max(0.0, double(c.total_num_steps - iteration) / decay_steps);
  return between(c.warmup_min_lr, c.warmup_max_lr, part);
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

double rate(const WarmupCosineLRConfig& c, int64_t iteration, double initial_lr) {
  return initial_lr * ratio(c, iteration);
}

double rate(const LRRangeTestConfig& c, int64_t iteration, double) {
  if (iteration < 0) return c.min_lr;
  double interval = double(iteration + 1) / double(c.step_size);
  if (c.staircase) interval = std::floor(interval);
  return c.min_lr * (1 + c.step_rate * interval);
}

// One cycle up and down, then decay. Step n of the cycle is iteration n - 1.
class Cycle {
 public:
  explicit Cycle(const OneCycleConfig& config)
      : config_(config),
        first_(config.cycle_first_step_size),
        second_(config.cycle_second_step_size.value_or(first_)),
        first_stairs_(config.cycle_first_stair_count),
        second_stairs_(config.cycle_second_stair_count.value_or(first_stairs_)) {}

  double rate(int64_t iteration) const {
    if (iteration < 0) return config_.cycle_min_lr;
    if (iteration < total()) return between(config_.cycle_min_lr, config_.cycle_max_lr, height(iteration + 1));
    if (config_.decay_step_size == 0) return config_.cycle_min_lr;
    return config_.cycle_min_lr / (1 + config_.decay_lr_rate * decay_intervals(iteration));
  }

  double momentum(int64_t iteration) const {
    // The rate's minimum is the momentum's maximum, except before the first step, when it starts at its minimum too.
    if (iteration < 0) return config_.cycle_min_mom;
    if (iteration < total()) return between(config_.cycle_max_mom, config_.cycle_min_mom, height(iteration + 1));
    if (config_.decay_step_size == 0) return config_.cycle_max_mom;
    return config_.cycle_max_mom * (1 + config_.decay_mom_rate * decay_intervals(iteration));
  }

 private:
  int64_t total() const { return first_ + second_; }

  double decay_intervals(int64_t iteration) const {
    return double(iteration - total() + 1) / double(config_.decay_step_size);
  }

  // 0 at the ends of the cycle, 1 at its top; in stairs where they are configured.
  double height(int64_t step) const {
    const int64_t at = step % total();
    const bool rising = at <= first_;
    const int64_t length = rising ? first_ : second_, left = rising ? at : total() - at;
    const int64_t stairs = rising ? first_stairs_ : second_stairs_;
    if (stairs == 0) return double(left) / double(length);
    return std::floor(double(left) * double(stairs) / double(length)) / double(stairs);
  }

  const OneCycleConfig& config_;
  int64_t first_, second_, first_stairs_, second_stairs_;
};

double rate(const OneCycleConfig& c, int64_t iteration, double) {
  return Cycle(c).rate(iteration);
}

}  // namespace

LRSchedule::LRSchedule(SchedulerConfig config, std::vector<double> initial_lrs)
    : config_(std::move(config)), initial_lrs_(std::move(initial_lrs)) {
  ZS_CHECK(!initial_lrs_.empty(), "a learning rate schedule needs the rate of at least one param group");
}

std::vector<double> LRSchedule::lrs(int64_t iteration) const {
  ZS_CHECK(iteration >= -1, "the iteration of a schedule starts at -1, got ", iteration);
  std::vector<double> rates;
  rates.reserve(initial_lrs_.size());
  for (const double initial_lr : initial_lrs_) {
    rates.push_back(std::visit([&](const auto& config) { return rate(config, iteration, initial_lr); }, config_));
  }
  return rates;
}

std::optional<LRSchedule::Betas> LRSchedule::betas(int64_t iteration) const {
  ZS_CHECK(iteration >= -1, "the iteration of a schedule starts at -1, got ", iteration);
  const auto* cycle = std::get_if<OneCycleConfig>(&config_);
  if (!cycle || !cycle->cycle_momentum) return std::nullopt;
  constexpr double kBeta2 = 0.99;
  return Betas{Cycle(*cycle).momentum(iteration), kBeta2};
}

}  // namespace zeroshard
