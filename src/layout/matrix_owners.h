#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace zeroshard {

// A parameter that an optimizer of whole matrices updates: `count` matrices of one shape.
struct MatrixShape {
  int64_t count = 1, rows = 1, cols = 1;
  int64_t numel() const { return count * rows * cols; }
  bool operator==(const MatrixShape&) const = default;
};

// A convolution's weight of 4 dimensions is one matrix with a row for each output; other dimensions before the last two
// count matrices. `shape` has two dimensions or more.
MatrixShape matrix_shape(std::span<const int64_t> shape);

// DeepSpeed's rule for the parameters that "Muon" orthogonalises: two dimensions or more, and neither "embed" nor
// "lm_head" in a name.
bool is_hidden_matrix(std::span<const std::string> names, std::span<const int64_t> shape);

// The rank that works on each matrix. The one with most work, m n min(m, n), is given away first, each to the rank with
// the least work so far (longest processing time first); ties go to the lower index and the lower rank.
std::vector<int> matrix_owners(std::span<const MatrixShape> matrices, int world_size);

}  // namespace zeroshard
