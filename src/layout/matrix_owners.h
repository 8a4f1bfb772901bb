#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace zeroshard {

// The shape of a parameter that an optimizer of whole matrices updates: `count` matrices of one shape.
struct MatrixShape {
  int64_t count = 1, rows = 1, cols = 1;
  int64_t numel() const { return count * rows * cols; }
  bool operator==(const MatrixShape&) const = default;
};

// Splits a parameter's shape, which must have two or more dimensions, into matrices. A shape of 4 dimensions, as that
// of a convolution's weight, is one matrix with a row for each output. Otherwise the last two dimensions are a matrix,
// and the earlier dimensions say how many matrices there are.
MatrixShape matrix_shape(std::span<const int64_t> shape);

// Returns whether "Muon" orthogonalises a parameter by DeepSpeed's rule. Such a parameter has two or more dimensions,
// and none of its names contains "embed" or "lm_head".
bool is_hidden_matrix(std::span<const std::string> names, std::span<const int64_t> shape);

// Assigns a rank to each matrix, the matrix with the most work, m n min(m, n), first. Each matrix goes to the rank with
// the least work so far (longest processing time first). Ties go to the lower index and the lower rank.
std::vector<int> matrix_owners(std::span<const MatrixShape> matrices, int world_size);

}  // namespace zeroshard
