#include "layout/matrix_owners.h"

#include <algorithm>
#include <cctype>
#include <numeric>

#include "base/check.h"

namespace zeroshard {
namespace {

// Returns the work of a parameter as a double, because products of large sizes exceed 2^63.
double work_of(const MatrixShape& shape) {
  return double(shape.numel()) * double(std::min(shape.rows, shape.cols));
}

}  // namespace

MatrixShape matrix_shape(std::span<const int64_t> shape) {
  ZS_CHECK(shape.size() >= 2, "a matrix has two dimensions or more, got ", shape.size());
  if (shape.size() == 4) return {1, shape[0], shape[1] * shape[2] * shape[3]};
  int64_t count = 1;
  for (const int64_t size : shape.first(shape.size() - 2)) count *= size;
  return {count, shape[shape.size() - 2], shape.back()};
}

bool is_hidden_matrix(std::span<const std::string> names, std::span<const int64_t> shape) {
  if (shape.size() < 2) return false;
  return std::ranges::none_of(names, [](std::string name) {
    std::ranges::transform(name, name.begin(), [](unsigned char c) { return char(std::tolower(c)); });
    return name.find("embed") != std::string::npos || name.find("lm_head") != std::string::npos;
  });
}

std::vector<int> matrix_owners(std::span<const MatrixShape> matrices, int world_size) {
  std::vector<size_t> order(matrices.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, std::greater(), [&](size_t i) { return work_of(matrices[i]); });
  std::vector<double> work(size_t(world_size), 0);
  std::vector<int> owners(matrices.size());
  for (const size_t i : order) {
    const auto least = std::ranges::min_element(work);
    owners[i] = int(least - work.begin());
    *least += work_of(matrices[i]);
  }
  return owners;
}

}  // namespace zeroshard
