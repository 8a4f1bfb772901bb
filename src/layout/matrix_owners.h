#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace zeroshard {

// The shape of a parameter whose optimizer updates whole matrices (Muon): the parameter is `count` matrices of `rows` x
// `cols`.
struct MatrixShape {
  int64_t count = 1, rows = 1, cols = 1;
  int64_t numel() const { return count * rows * cols; }
  bool operator==(const MatrixShape&) const = default;
};

// Splits a parameter's shape, which must have two or more dimensions, into matrices. A shape of 4 dimensions, such as
// the weight [out, in, height, width] of a convolution, is one matrix with a row for each output channel. Otherwise the
// last two dimensions are a matrix, and the earlier dimensions say how many matrices there are.
MatrixShape matrix_shape(std::span<const int64_t> shape);

// Returns whether the optimizer "Muon" orthogonalises the updates of a parameter, by DeepSpeed's rule: the parameter
// has two or more dimensions, and none of its names contains "embed" or "lm_head" in upper or lower case.
bool is_hidden_matrix(std::span<const std::string> names, std::span<const int64_t> shape);

// Returns for each parameter of `matrices` the rank that updates all its matrices. The work of a parameter of `count`
// matrices of m x n is count * m * n * min(m, n). Parameters are assigned in descending order of their work, each to
// the rank that has the least work so far (longest processing time first). Among parameters of equal work, the one with
// the lower index comes first. Among ranks of equal work, the lowest gets the parameter.
std::vector<int> matrix_owners(std::span<const MatrixShape> matrices, int world_size);

}  // namespace zeroshard
