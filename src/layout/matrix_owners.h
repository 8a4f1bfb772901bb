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

// Splits a parameter's shape, which has two or more dimensions, into matrices. A shape of 4 dimensions, as of a
// convolution's weight, is one matrix with a row per output. Otherwise the last two dimensions are the matrix, and
// earlier dimensions count matrices.
MatrixShape matrix_shape(std::span<const int64_t> shape);

// DeepSpeed's rule for the parameters that "Muon" orthogonalises: they have two or more dimensions, and neither "embed"
// nor "lm_head" in a name.
bool is_hidden_matrix(std::span<const std::string> names, std::span<const int64_t> shape);

// Assigns a rank to each matrix. The matrix with the most work, m n min(m, n), is assigned first. Each goes to the rank
// with the least work so far (longest processing time first). Ties go to the lower index and the lower rank.
std::vector<int> matrix_owners(std::span<const MatrixShape> matrices, int world_size);

}  // namespace zeroshard
