#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "layout/matrix_owners.h"
#include "layout/unit_layout.h"
#include "placement/placement.h"
#include "plan/state_rules.h"
#include "zeroshard/plan.h"

// How an optimizer of whole matrices works on parameters that ranks have shards of: each matrix goes to the rank that
// owns it, is transformed there, and goes back. See docs/design/matrices.md.
namespace zeroshard {

// Each part of a slot begins at a multiple of so many bytes.
inline constexpr int64_t kMatrixAlignment = 64;

// A stretch of a matrix, which one rank has in its shard.
struct MatrixPiece {
  size_t matrix = 0;  // in MatrixBatch::matrices
  int rank = 0;
  Range positions;  // in the flat group
};

// Matrices that travel together. Each rank has a slot of memory for them: the updates of its elements of these groups,
// one group after another; the pieces that it sends; and the pieces that it gets.
struct MatrixBatch {
  struct Matrix {
    size_t group;  // in `groups`
    size_t param;  // of the group
    MatrixShape shape;
    int owner;
  };
  struct Group {
    size_t unit, group;
    int64_t first = 0;  // its first element among the updates
    int64_t numel = 0;  // that a rank updates
  };
  std::vector<Group> groups;
  std::vector<Matrix> matrices;
  std::vector<MatrixPiece> pieces;  // by rank, then by owner, then by matrix: as a rank sends them
  std::vector<int64_t> counts;      // of Comm::all_to_all_v
  int64_t numel = 0;                // of the updates
  int64_t most_sent = 0, most_got = 0;

  int64_t slot_bytes(DType dtype) const;
};

// Elements of a batch for each rank, unless one unit has more.
inline constexpr int64_t kMatrixBatchNumel = 1 << 24;

// In the order of the units. A batch ends before the unit with which a rank would have more than `batch_numel`
// elements.
std::vector<MatrixBatch> matrix_batches(std::span<const UnitLayout> units, PlacementTable table, int world_size,
                                        int64_t batch_numel = kMatrixBatchNumel);

// One slot of a batch whose pieces come, one of the batch that is computed, and one whose updates go back.
RingClass matrix_ring(std::span<const UnitLayout> units, PlacementTable table, const PlanOptions& options);

// What the transformation of one parameter needs beside its pieces: at most this much for the largest.
int64_t matrix_temporaries(const MatrixShape& shape, DType dtype);
int64_t matrix_temporaries(std::span<const UnitLayout> units, const PlanOptions& options);

}  // namespace zeroshard
