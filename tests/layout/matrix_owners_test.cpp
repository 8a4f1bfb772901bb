#include "layout/matrix_owners.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "support/random.h"
#include "zeroshard/error.h"

namespace zeroshard {
namespace {

using testing::SeededRandom;
using testing::seeds;

TEST(MatrixOwners, TheHeaviestComesFirstAndTiesGoByIndex) {
  const std::vector<MatrixShape> shapes{{1, 2, 2}, {1, 4, 4}, {1, 4, 4}, {1, 2, 2}, {1, 2, 2}};
  EXPECT_EQ(matrix_owners(shapes, 2), (std::vector<int>{0, 0, 1, 1, 0}));
  EXPECT_EQ(matrix_owners(shapes, 1), (std::vector<int>{0, 0, 0, 0, 0}));
  EXPECT_EQ(matrix_owners({}, 3), std::vector<int>{});
}

TEST(MatrixOwners, NoRankHasMuchMoreThanItsShare) {
  for (const uint64_t seed : seeds(300)) {
    SeededRandom random(seed);
    const int world_size = random.between(1, 9);
    std::vector<MatrixShape> shapes;
    double sum = 0, most = 0;
    const auto work = [](const MatrixShape& s) { return double(s.numel()) * double(std::min(s.rows, s.cols)); };
    for (int i = random.between(0, 40); i > 0; --i) {
      shapes.push_back({random.between(1, 3), random.between(1, 400), random.between(1, 400)});
      sum += work(shapes.back());
      most = std::max(most, work(shapes.back()));
    }
    std::vector<double> of_rank(size_t(world_size), 0);
    const std::vector<int> owners = matrix_owners(shapes, world_size);
    for (size_t i = 0; i < shapes.size(); ++i) of_rank.at(size_t(owners[i])) += work(shapes[i]);
    EXPECT_LE(std::ranges::max(of_rank), sum / world_size + most) << "seed " << seed;
  }
}

TEST(MatrixOwners, ShapesOfThreeDimensionsAreBatchesAndConvolutionsRows) {
  EXPECT_EQ(matrix_shape(std::vector<int64_t>{3, 5}), (MatrixShape{1, 3, 5}));
  EXPECT_EQ(matrix_shape(std::vector<int64_t>{8, 3, 5}), (MatrixShape{8, 3, 5}));
  EXPECT_EQ(matrix_shape(std::vector<int64_t>{8, 3, 5, 2}), (MatrixShape{1, 8, 30}));
  EXPECT_EQ(matrix_shape(std::vector<int64_t>{2, 2, 8, 3, 5}), (MatrixShape{32, 3, 5}));
  EXPECT_THROW(matrix_shape(std::vector<int64_t>{3}), ValueError);
}

TEST(MatrixOwners, EmbeddingsHeadsAndVectorsAreNoHiddenMatrices) {
  const auto is_hidden = [](std::vector<std::string> names, std::vector<int64_t> shape) {
    return is_hidden_matrix(names, shape);
  };
  EXPECT_TRUE(is_hidden({"layers.0.mlp.weight"}, {4, 4}));
  EXPECT_TRUE(is_hidden({"experts"}, {8, 4, 4}));
  EXPECT_FALSE(is_hidden({"layers.0.norm.weight"}, {4}));
  EXPECT_FALSE(is_hidden({"model.Embed_tokens.weight"}, {4, 4}));
  EXPECT_FALSE(is_hidden({"tied.weight", "lm_head.weight"}, {4, 4}));
}

}  // namespace
}  // namespace zeroshard
