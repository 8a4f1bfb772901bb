#pragma once
#include <ATen/core/Tensor.h>

#include "layout/matrix_owners.h"
#include "zeroshard/config.h"

namespace zeroshard {

// The rule of an optimizer that updates whole matrices, such as Muon. Its three methods are the parts of an update
// between which MatrixUpdate sends values to other ranks. Another such optimizer needs one more file like muon.cpp, and
// one line in matrix_rule().
class MatrixRule {
 public:
  virtual ~MatrixRule() = default;
  // Runs on the rank that has the elements, which may be any part of a parameter. Updates the state in place, and
  // returns the values that the owner of the matrix needs. All tensors are 1-D and fp32.
  virtual at::Tensor gather(const at::Tensor& state, const at::Tensor& grad,
                            const ParamGroupOptions& options) const = 0;
  // Runs on the owner. Returns the update of one 2-D matrix, which may have another dtype.
  virtual at::Tensor transform(const at::Tensor& matrix, const ParamGroupOptions& options) const = 0;
  // Returns the factor of the learning rate. Weight decay uses the learning rate without the factor.
  virtual double rate_factor(const MatrixShape& shape, const ParamGroupOptions& options) const = 0;
};

// Throws ValueError for a type whose updates are elementwise.
const MatrixRule& matrix_rule(OptimizerConfig::Type type);

// p *= 1 - lr * weight_decay; p += -lr * rate_factor * update. Both are 1-D over the same elements.
void apply_matrix_update(const at::Tensor& weights, const at::Tensor& update, const ParamGroupOptions& options,
                         double rate_factor);

}  // namespace zeroshard
