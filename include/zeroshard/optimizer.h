#pragma once
#include <cstdint>

#include "zeroshard/config.h"

namespace zeroshard {

// Hyper-parameters of one param group, read again at every step. Fields that an optimizer does not have are ignored.
struct ParamGroupOptions {
  double lr = 1e-3;
  double weight_decay = 0;
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8;  // Adam, AdamW, Lion
  double momentum = 0, dampening = 0;             // SGD
  double lr_decay = 0;                            // Adagrad
  bool nesterov = false, maximize = false, bias_correction = true;
  bool decoupled_weight_decay = true;  // Adam: AdamW's weight decay

  // The values of a configuration's "optimizer" block.
  static ParamGroupOptions from(const OptimizerConfig& config);
};

// fp32 tensors per parameter that an optimizer keeps besides the weights.
int num_moments(OptimizerConfig::Type type, bool momentum);

}  // namespace zeroshard
