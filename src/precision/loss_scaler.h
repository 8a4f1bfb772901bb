#pragma once
#include <cstdint>

#include "zeroshard/config.h"

namespace zeroshard {

// The state of a LossScaler that a checkpoint saves.
struct LossScalerState {
  double scale = 1;
  int64_t iteration = 0;       // number of calls of update()
  int64_t last_overflow = -1;  // `iteration` at the last overflow; -1: none yet
  int hysteresis_left = 1;     // 1 + the number of coming overflows that leave the scale unchanged
  bool operator==(const LossScalerState&) const = default;
};

// Chooses the factor by which an fp16 loss is multiplied, so that small gradients do not underflow to 0. Without fp16
// the factor is 1. A fixed fp16.loss_scale never changes. A dynamic factor is doubled, up to 2^127, after every full
// window of fp16.loss_scale_window steps without overflow. The first step of a run and the first step after an overflow
// do not count.
//
// If fp16.hysteresis is h, the first h - 1 overflows do not change a dynamic factor. Each later overflow halves it, but
// never below fp16.min_loss_scale. The count of overflows starts anew when the factor is doubled. If
// fp16.consecutive_hysteresis is set, the count starts anew after every step without overflow. An overflow at the
// minimum is no error, because the caller limits how many steps in a row may be skipped. All ranks must pass the same
// `found_inf` to update().
class LossScaler {
 public:
  // Throws ValueError if the configured scale or minimum is outside of (0, 2^127], or if the hysteresis or the window
  // is below 1.
  explicit LossScaler(const Fp16Config& config);

  double scale() const { return state_.scale; }
  bool dynamic() const { return dynamic_; }

  // Must be called once for each step. `found_inf` says that the gradients had inf or NaN, so that the step is skipped.
  // Does nothing if the scaler is not dynamic.
  void update(bool found_inf);

  const LossScalerState& state() const { return state_; }
  // Loads the state of a checkpoint. If the state has a hysteresis_left above fp16.hysteresis, reduces it to
  // fp16.hysteresis. If a value of the state is impossible, throws ValueError and keeps the current state. A scaler
  // that is not dynamic ignores the state.
  void load(const LossScalerState& state);

 private:
  void on_overflow();
  void on_good_step();

  Fp16Config config_;
  bool dynamic_;
  LossScalerState state_;
};

}  // namespace zeroshard
