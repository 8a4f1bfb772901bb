#pragma once
#include <ATen/core/Tensor.h>

#include "layout/matrix_owners.h"
#include "zeroshard/config.h"

namespace zeroshard {

// The rule of an optimizer that updates whole matrices, such as Muon. An update calls accumulate(), transform(),
// rate_factor() and apply_matrix_update() in this order. Before and after transform(), MatrixUpdate sends values to
// other ranks. Another such optimizer needs one more file like muon.cpp, and one line in matrix_rule().
class MatrixRule {
 public:
  virtual ~MatrixRule() = default;
  // Runs on each rank, for the elements that the rank has. These can be any part of a parameter. Updates `state` (the
  // momentum) in place. Returns the values that the matrix's owner will transform, which may be `state` itself. All
  // tensors are 1-D and fp32.
  virtual at::Tensor accumulate(const at::Tensor& state, const at::Tensor& grad,
                                const ParamGroupOptions& options) const = 0;
  // Runs on the matrix's owner. Returns the update for one 2-D matrix. The update may have another dtype than `matrix`.
  virtual at::Tensor transform(const at::Tensor& matrix, const ParamGroupOptions& options) const = 0;
  // Returns a factor for the learning rate of a parameter of this shape. Weight decay uses the learning rate without
  // this factor.
  virtual double rate_factor(const MatrixShape& shape, const ParamGroupOptions& options) const = 0;
};

// Returns the rule of a type of optimizer. Throws ValueError if the type updates each element on its own.
const MatrixRule& matrix_rule(OptimizerConfig::Type type);

// Updates weights p: p *= 1 - lr * weight_decay; p += -lr * rate_factor * update. Both tensors are 1-D and for the same
// elements.
void apply_matrix_update(const at::Tensor& weights, const at::Tensor& update, const ParamGroupOptions& options,
                         double rate_factor);

}  // namespace zeroshard
