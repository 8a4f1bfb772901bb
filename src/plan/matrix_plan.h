#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "layout/matrix_owners.h"
#include "layout/unit_layout.h"
#include "placement/placement.h"
#include "plan/state_rules.h"
#include "zeroshard/plan.h"

// Plans how an optimizer of whole matrices updates sharded parameters: each matrix is sent to the rank that owns it,
// transformed there, and sent back. See docs/design/matrices.md.
namespace zeroshard {

// Each part of a slot begins at a multiple of this many bytes.
inline constexpr int64_t kMatrixAlignment = 64;

// The elements of a matrix in one rank's shard.
struct MatrixPiece {
  size_t matrix = 0;  // index in MatrixBatch::matrices
  int rank = 0;
  Range positions;  // positions in the flat group
};

// Matrices that are exchanged together. Each rank has a slot of memory for them with three parts: the updates of its
// elements of these groups (one group after another), the pieces that it sends, and the pieces that it receives.
struct MatrixBatch {
  struct Matrix {
    size_t group;  // index in `groups`
    size_t param;  // index in the group
    MatrixShape shape;
    int owner;
  };
  struct Group {
    size_t unit, group;
    int64_t first = 0;  // position of its first element among the updates
    int64_t numel = 0;  // number of elements that a rank updates
  };
  std::vector<Group> groups;
  std::vector<Matrix> matrices;
  std::vector<MatrixPiece> pieces;  // by rank, then by owner, then by matrix: the order in which a rank sends them
  std::vector<int64_t> counts;      // counts of Comm::all_to_all_v
  int64_t numel = 0;                // number of elements of the updates
  int64_t most_sent = 0, most_got = 0;

  int64_t slot_bytes(DType dtype) const;
};

// The number of elements of a batch per rank, unless a single unit has more.
inline constexpr int64_t kMatrixBatchNumel = 1 << 24;

// Returns the batches in the order of the units. A batch ends before the unit with which a rank would have more than
// `batch_numel` elements.
std::vector<MatrixBatch> matrix_batches(std::span<const UnitLayout> units, PlacementTable table, int world_size,
                                        int64_t batch_numel = kMatrixBatchNumel);

// Returns the ring of slots for batches: one batch is received, one is computed, and one is sent back at the same time.
RingClass matrix_ring(std::span<const UnitLayout> units, PlacementTable table, const PlanOptions& options);

// Returns an upper limit of the temporary memory for transforming one parameter (of all parameters: the largest), not
// counting its pieces.
int64_t matrix_temporaries(const MatrixShape& shape, DType dtype);
int64_t matrix_temporaries(std::span<const UnitLayout> units, const PlanOptions& options);

}  // namespace zeroshard
