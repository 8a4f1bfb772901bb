#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "layout/matrix_owners.h"
#include "layout/unit_layout.h"
#include "placement/placement.h"
#include "plan/buffer_sizes.h"
#include "zeroshard/plan.h"

// Plans how an optimizer that needs whole matrices, such as Muon, updates sharded parameters. The pieces of a matrix
// are sent to the rank that owns the matrix, transformed there, and sent back. See docs/design/matrices.md.
namespace zeroshard {

// Each part of a slot begins at a multiple of this many bytes.
inline constexpr int64_t kMatrixAlignment = 64;

// The elements of one parameter that are in one rank's part of the optimizer states.
struct MatrixPiece {
  size_t matrix = 0;  // index in MatrixBatch::matrices
  int rank = 0;
  Range positions;  // positions of the piece's elements in the flat group
};

// Matrices that are exchanged together. Each entry of `matrices` is a parameter, which can have several matrices of one
// shape. Each rank has a slot of memory for a batch. A slot has three parts: the updates of the rank's elements of the
// batch's groups (one group after another), the pieces that the rank sends, and the pieces that it receives.
struct MatrixBatch {
  struct Matrix {
    size_t group;  // index in MatrixBatch::groups
    size_t param;  // the parameter's index in the group
    MatrixShape shape;
    int owner;
  };
  struct Group {
    size_t unit, group;
    int64_t first = 0;  // position of the group's first element among the updates
    int64_t numel = 0;  // elements of the group that a rank updates
  };
  std::vector<Group> groups;
  std::vector<Matrix> matrices;
  // The pieces are ordered by rank, then by the matrix's owner, then by matrix. A rank sends its pieces in this order.
  std::vector<MatrixPiece> pieces;
  std::vector<int64_t> counts;  // the `counts` of Comm::all_to_all_v()
  int64_t numel = 0;            // elements that a rank updates in all groups
  // The most elements that any rank sends, and the most that any rank receives, both including what it sends to itself.
  // With one rank both are 0.
  int64_t most_sent = 0, most_got = 0;

  int64_t slot_bytes(DType dtype) const;
  // Returns the indices of a matrix's pieces, in the order of their elements.
  std::vector<size_t> pieces_of(size_t matrix) const;
};

// The most elements that one rank updates in a batch. Only in a batch of a single group may it update more.
inline constexpr int64_t kMatrixBatchNumel = 1 << 24;

// Returns the batches, in the order of the units. A new batch begins with each group that would make a rank update more
// than `batch_numel` elements in the batch before.
std::vector<MatrixBatch> matrix_batches(std::span<const UnitLayout> units, PlacementTable table, int world_size,
                                        int64_t batch_numel = kMatrixBatchNumel);

// Returns the ring of slots for batches. The ring has at most three slots, because one batch is received while another
// is computed and a third is sent back. The ring has no slot if the optimizer does not update whole matrices.
RingClass matrix_ring(std::span<const UnitLayout> units, PlacementTable table, const PlanOptions& options);

// The first function returns an upper limit of the temporary bytes that the transformation of one parameter's matrices
// needs, in addition to the pieces. The second returns the largest of these limits among all matrices, or 0 if the
// optimizer does not update whole matrices.
int64_t matrix_temporaries(const MatrixShape& shape, DType dtype);
int64_t matrix_temporaries(std::span<const UnitLayout> units, const PlanOptions& options);

}  // namespace zeroshard
