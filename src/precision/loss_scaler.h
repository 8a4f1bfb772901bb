#pragma once
#include <cstdint>

#include "zeroshard/config.h"

namespace zeroshard {

// The state of a LossScaler in a checkpoint.
struct LossScalerState {
  double scale = 1;
  int64_t iteration = 0;       // number of update() calls
  int64_t last_overflow = -1;  // the iteration of the last overflow; -1: none yet
  int hysteresis_left = 1;     // number of overflows until the scale is halved, at least 1
  bool operator==(const LossScalerState&) const = default;
};

// Chooses the factor by which an fp16 loss is multiplied so that small gradients do not vanish. Without fp16 the factor
// is 1. A fixed fp16.loss_scale never changes. A dynamic factor is doubled after every full window of steps without
// overflow. An overflow halves it if the hysteresis is used up, but never below the minimum. An overflow at the minimum
// is no error here, because the caller limits how many steps in a row are skipped. All ranks must pass the same
// `found_inf` to update().
class LossScaler {
 public:
  // Throws ValueError if the configured scale is not positive and finite.
  explicit LossScaler(const Fp16Config& config);

  double scale() const { return state_.scale; }
  bool dynamic() const { return dynamic_; }

  // The caller calls it once per step. `found_inf` says that the gradients had inf or NaN, so that the step is skipped.
  void update(bool found_inf);

  const LossScalerState& state() const { return state_; }
  // Loads the state of a checkpoint. Throws ValueError for a state that is impossible in this configuration, and then
  // keeps the current state. A scaler that is not dynamic keeps its configured scale.
  void load(const LossScalerState& state);

 private:
  void on_overflow();
  void on_good_step();

  Fp16Config config_;
  bool dynamic_;
  LossScalerState state_;
};

}  // namespace zeroshard
