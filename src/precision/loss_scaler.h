#pragma once
#include <cstdint>

#include "zeroshard/config.h"

namespace zeroshard {

// The state of a LossScaler that a checkpoint saves.
struct LossScalerState {
  double scale = 1;
  int64_t iteration = 0;       // how often update() was called
  int64_t last_overflow = -1;  // `iteration` at the last overflow; -1: none yet
  int hysteresis_left = 1;     // number of the coming overflow that halves the scale; 1: the next one
  bool operator==(const LossScalerState&) const = default;
};

// Chooses the factor by which an fp16 loss is multiplied so that small gradients do not vanish. Without fp16 the factor
// is 1. A fixed fp16.loss_scale never changes. A dynamic factor is doubled, up to 2^127, after every full window of
// steps without overflow. The first such step after an overflow does not count. An overflow halves it if the hysteresis
// is used up, but never below the minimum. An overflow at the minimum is no error, because the caller limits how many
// steps in a row may be skipped. All ranks must pass the same `found_inf` to update().
class LossScaler {
 public:
  // Throws ValueError if the configured scale is not positive and finite.
  explicit LossScaler(const Fp16Config& config);

  double scale() const { return state_.scale; }
  bool dynamic() const { return dynamic_; }

  // Must be called once for each step. `found_inf` says that the gradients had inf or NaN, so that the step is skipped.
  void update(bool found_inf);

  const LossScalerState& state() const { return state_; }
  // Loads the state of a checkpoint. If the state is impossible in this configuration, throws ValueError and keeps the
  // current state. A scaler that is not dynamic keeps its configured scale.
  void load(const LossScalerState& state);

 private:
  void on_overflow();
  void on_good_step();

  Fp16Config config_;
  bool dynamic_;
  LossScalerState state_;
};

}  // namespace zeroshard
