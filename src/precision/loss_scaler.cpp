#include "precision/loss_scaler.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace zeroshard {
namespace {

// The largest scale. It must be finite in fp32, because fp32 values are multiplied by it.
const double kMaxScale = std::ldexp(1.0, 127);

double initial_scale(const Fp16Config& config) {
  if (!config.enabled) return 1;
  return config.loss_scale > 0 ? config.loss_scale : std::ldexp(1.0, config.initial_scale_power);
}

bool is_usable(double scale) {
  return std::isfinite(scale) && scale > 0 && scale <= kMaxScale;
}

}  // namespace

LossScaler::LossScaler(const Fp16Config& config) : config_(config), dynamic_(config.enabled && config.loss_scale == 0) {
  state_.scale = initial_scale(config);
  state_.hysteresis_left = config.hysteresis;
  ZS_CHECK(is_usable(state_.scale), "the loss scale must be above 0 and at most 2^127, got ", state_.scale);
  ZS_CHECK(config.hysteresis >= 1, "fp16.hysteresis must be at least 1, got ", config.hysteresis);
  ZS_CHECK(config.loss_scale_window >= 1, "fp16.loss_scale_window must be at least 1, got ", config.loss_scale_window);
  ZS_CHECK(is_usable(config.min_loss_scale), "fp16.min_loss_scale must be above 0, got ", config.min_loss_scale);
}

void LossScaler::update(bool found_inf) {
  if (!dynamic_) return;
  found_inf ? on_overflow() : on_good_step();
  ++state_.iteration;
}

void LossScaler::on_overflow() {
  if (state_.hysteresis_left == 1) {
    state_.scale = std::max(state_.scale / 2, config_.min_loss_scale);
  } else {
    --state_.hysteresis_left;
  }
  state_.last_overflow = state_.iteration;
}

void LossScaler::on_good_step() {
  if (config_.consecutive_hysteresis) state_.hysteresis_left = config_.hysteresis;
  // The first good step after an overflow, or of a run, does not count. So the scale is doubled at good step
  // loss_scale_window + 1.
  const int64_t good_steps = state_.iteration - state_.last_overflow - 1;
  if (good_steps == 0 || good_steps % config_.loss_scale_window != 0) return;
  state_.hysteresis_left = config_.hysteresis;
  state_.scale = std::min(state_.scale * 2, kMaxScale);
}

void LossScaler::load(const LossScalerState& state) {
  if (!dynamic_) return;
  ZS_CHECK(is_usable(state.scale), "a saved loss scale must be above 0 and at most 2^127, got ", state.scale);
  ZS_CHECK(state.iteration >= 0 && state.last_overflow >= -1 && state.last_overflow <= state.iteration,
           "a saved loss scaler has its last overflow at iteration ", state.last_overflow, " of ", state.iteration);
  ZS_CHECK(state.hysteresis_left >= 1, "a saved hysteresis must be at least 1, got ", state.hysteresis_left);
  state_ = state;
  // The configured hysteresis can be smaller now than it was when `state` was saved.
  state_.hysteresis_left = std::min(state_.hysteresis_left, config_.hysteresis);
}

}  // namespace zeroshard
