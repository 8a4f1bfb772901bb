#include "plan/matrix_plan.h"

#include <gtest/gtest.h>

#include "plan/plan_ledger.h"
#include "support/random.h"

namespace zeroshard {
namespace {

using testing::SeededRandom;
using testing::seeds;

PlanOptions options_of(int world_size, int stage) {
  PlanOptions options;
  options.world_size = world_size;
  options.stage = stage;
  options.persistence_threshold = 0;
  options.matrix_dtype = DType::kBFloat16;
  return options;
}

UnitLayout unit_of(const std::vector<std::vector<int64_t>>& shapes, int world_size) {
  std::vector<ParamSpec> params;
  for (const std::vector<int64_t>& shape : shapes) {
    params.push_back({{"w" + std::to_string(params.size())}, shape, DType::kFloat32, true, shape.size() > 1});
  }
  return make_unit_layout("unit", std::move(params), world_size);
}

TEST(MatrixPlan, EveryElementTravelsToItsOwnerOnce) {
  for (const uint64_t seed : seeds(200)) {
    SeededRandom random(seed);
    const int world_size = random.between(1, 6);
    std::vector<UnitLayout> units;
    for (int u = random.between(1, 5); u > 0; --u) {
      std::vector<std::vector<int64_t>> shapes{{random.between(1, 99)}};
      for (int i = random.between(0, 4); i > 0; --i) shapes.push_back({random.between(0, 90), random.between(1, 90)});
      units.push_back(unit_of(shapes, world_size));
    }
    const PlanOptions options = options_of(world_size, random.between(0, 3));
    const std::vector<UnitPlacement> table = place(units, options);
    int64_t matrices = 0;
    for (const MatrixBatch& batch : matrix_batches(units, table, world_size, random.between(1, 20000))) {
      std::vector<int64_t> seen(batch.matrices.size()), counts(size_t(world_size) * size_t(world_size), 0);
      int last_rank = 0, last_owner = 0;
      for (const MatrixPiece& piece : batch.pieces) {
        const MatrixBatch::Matrix& matrix = batch.matrices[piece.matrix];
        if (piece.rank != last_rank) last_owner = 0;
        EXPECT_GE(piece.rank, last_rank);
        EXPECT_GE(matrix.owner, last_owner);
        last_rank = piece.rank, last_owner = matrix.owner;
        const MatrixBatch::Group& group = batch.groups[matrix.group];
        const Range whole = units[group.unit].groups[group.group].layout.param(matrix.param);
        EXPECT_EQ(piece.positions.begin, whole.begin + seen[piece.matrix]) << "seed " << seed;
        seen[piece.matrix] += piece.positions.size();
        counts[size_t(piece.rank * world_size + matrix.owner)] += piece.positions.size();
      }
      EXPECT_EQ(counts, batch.counts);
      for (size_t m = 0; m < seen.size(); ++m) EXPECT_EQ(seen[m], batch.matrices[m].shape.numel()) << "seed " << seed;
      matrices += int64_t(seen.size());
    }
    int64_t expected = 0;
    for (const UnitLayout& unit : units)
      for (const ParamSpec& param : unit.params) expected += param.is_matrix;
    EXPECT_EQ(matrices, expected);
  }
}

// Of a decoder's layers: what a rank gives away, to the owners and back, is at most 2 b M / N bytes a step.
TEST(MatrixPlan, ARankSendsAtMostTwiceItsShare) {
  for (const int world_size : {2, 3, 4, 8}) {
    std::vector<UnitLayout> units;
    int64_t numel = 0;
    for (int u = 0; u < 8; ++u) {
      units.push_back(
          unit_of({{512, 512}, {128, 512}, {128, 512}, {512, 512}, {1408, 512}, {1408, 512}, {512, 1408}}, world_size));
      numel += units.back().numel();
    }
    const std::vector<UnitPlacement> table = place(units, options_of(world_size, 3));
    std::vector<int64_t> sent(size_t(world_size), 0);
    for (const MatrixBatch& batch : matrix_batches(units, table, world_size)) {
      for (int from = 0; from < world_size; ++from) {
        for (int to = 0; to < world_size; ++to) {
          if (from == to) continue;
          sent[size_t(from)] += batch.counts[size_t(from * world_size + to)];
          sent[size_t(to)] += batch.counts[size_t(from * world_size + to)];  // back
        }
      }
    }
    for (const int64_t of_rank : sent) EXPECT_LE(of_rank, 2 * numel / world_size) << world_size;
  }
}

TEST(MatrixPlan, MatricesHaveOneMomentAndARing) {
  const std::vector<UnitLayout> units{unit_of({{64, 64}, {64}}, 2), unit_of({{64, 32}}, 2)};
  const PlanReport report = plan_ledger(units, options_of(2, 3));
  EXPECT_EQ(report.placements[0].groups[0].moments.values, 2);  // the vector
  EXPECT_EQ(report.placements[0].groups[1].moments.values, 1);
  EXPECT_EQ(report.bytes.at(Category::kMoments, Tier::kDevice), 4 * (2 * 1024 + 2048 + 1024));
  EXPECT_EQ(report.matrix_ring.slots, 1);  // all travel together
  EXPECT_EQ(report.matrix_ring.slot_bytes,
            2 * (3072 + 3072 + 4096));  // a shard, what it sends of it, the larger matrix
  PlanOptions other = options_of(2, 3);
  other.matrix_dtype.reset();
  EXPECT_EQ(plan_ledger(units, other).matrix_ring.bytes(), 0);
}

}  // namespace
}  // namespace zeroshard
