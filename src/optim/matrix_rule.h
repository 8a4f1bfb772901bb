#pragma once
#include <ATen/core/Tensor.h>

#include "layout/matrix_owners.h"
#include "zeroshard/config.h"

namespace zeroshard {

// What an optimizer of whole matrices does, in the three parts between which values travel. The next such optimizer is
// one more file like muon.cpp, and a line in matrix_rule().
class MatrixRule {
 public:
  virtual ~MatrixRule() = default;
  // On the rank that has the elements, which are any stretch of a parameter: updates the state in place, and returns
  // what the owner of the matrix needs. All are 1-D and fp32.
  virtual at::Tensor gather(const at::Tensor& state, const at::Tensor& grad,
                            const ParamGroupOptions& options) const = 0;
  // On the owner: the update of one matrix of two dimensions. The result may have another dtype.
  virtual at::Tensor transform(const at::Tensor& matrix, const ParamGroupOptions& options) const = 0;
  // By what the learning rate is multiplied; weight decay has the rate itself.
  virtual double rate_factor(const MatrixShape& shape, const ParamGroupOptions& options) const = 0;
};

// Throws ValueError for a type whose updates are elementwise.
const MatrixRule& matrix_rule(OptimizerConfig::Type type);

// p *= 1 - lr * weight_decay; p += -lr * rate_factor * update. Both are 1-D over the same elements.
void apply_matrix_update(const at::Tensor& weights, const at::Tensor& update, const ParamGroupOptions& options,
                         double rate_factor);

}  // namespace zeroshard
