#include "plan/matrix_plan.h"

#include <algorithm>

#include "base/align.h"

namespace zeroshard {
namespace {

constexpr int kMatrixSlots = 3;

// Fills the batch's `pieces`, `counts`, `most_sent` and `most_got`.
void add_pieces(std::span<const UnitLayout> units, int world_size, MatrixBatch& batch) {
  batch.counts.assign(size_t(world_size) * size_t(world_size), 0);
  for (int rank = 0; rank < world_size; ++rank) {
    for (int owner = 0; owner < world_size; ++owner) {
      for (size_t m = 0; m < batch.matrices.size(); ++m) {
        const MatrixBatch::Matrix& matrix = batch.matrices[m];
        if (matrix.owner != owner) continue;
        const MatrixBatch::Group& group = batch.groups[matrix.group];
        const Range owned = units[group.unit].groups[group.group].layout.owned(matrix.param, rank);
        if (owned.size() == 0) continue;
        batch.pieces.push_back({m, rank, owned});
        batch.counts[size_t(rank * world_size + owner)] += owned.size();
      }
    }
  }
  if (world_size == 1) return;  // a single rank transforms the matrices where they are
  for (int rank = 0; rank < world_size; ++rank) {
    int64_t sent = 0, got = 0;
    for (int peer = 0; peer < world_size; ++peer) {
      sent += batch.counts[size_t(rank * world_size + peer)];
      got += batch.counts[size_t(peer * world_size + rank)];
    }
    batch.most_sent = std::max(batch.most_sent, sent);
    batch.most_got = std::max(batch.most_got, got);
  }
}

void finish(std::span<const UnitLayout> units, int world_size, MatrixBatch& batch) {
  std::vector<MatrixShape> shapes;
  for (const MatrixBatch::Matrix& matrix : batch.matrices) shapes.push_back(matrix.shape);
  const std::vector<int> owners = matrix_owners(shapes, world_size);
  for (size_t m = 0; m < owners.size(); ++m) batch.matrices[m].owner = owners[m];
  add_pieces(units, world_size, batch);
}

}  // namespace

int64_t MatrixBatch::slot_bytes(DType dtype) const {
  int64_t bytes = 0;
  for (const int64_t numel : {numel, most_sent, most_got})
    bytes += align_up(numel * element_size(dtype), kMatrixAlignment);
  return bytes;
}

std::vector<size_t> MatrixBatch::pieces_of(size_t matrix) const {
  std::vector<size_t> found;
  for (size_t i = 0; i < pieces.size(); ++i)
    if (pieces[i].matrix == matrix) found.push_back(i);
  std::ranges::sort(found, {}, [&](size_t i) { return pieces[i].positions.begin; });
  return found;
}

std::vector<MatrixBatch> matrix_batches(std::span<const UnitLayout> units, PlacementTable table, int world_size,
                                        int64_t batch_numel) {
  std::vector<MatrixBatch> batches;
  for (size_t u = 0; u < units.size(); ++u) {
    for (size_t g = 0; g < units[u].groups.size(); ++g) {
      const FlatGroup& flat = units[u].groups[g];
      if (!flat.is_matrix) continue;
      const int64_t numel = table[u].groups[g].updates_whole() ? flat.layout.padded_numel() : flat.layout.part_numel();
      if (batches.empty() || batches.back().numel + numel > batch_numel) batches.emplace_back();
      MatrixBatch& batch = batches.back();
      for (size_t i = 0; i < flat.params.size(); ++i) {
        const MatrixShape shape = matrix_shape(units[u].params[flat.params[i]].shape);
        batch.matrices.push_back({batch.groups.size(), i, shape, 0});
      }
      batch.groups.push_back({u, g, batch.numel, numel});
      batch.numel += numel;
    }
  }
  for (MatrixBatch& batch : batches) finish(units, world_size, batch);
  return batches;
}

RingClass matrix_ring(std::span<const UnitLayout> units, PlacementTable table, const PlanOptions& options) {
  if (!options.matrix_dtype) return {};
  const std::vector<MatrixBatch> batches = matrix_batches(units, table, state_ranks(options));
  RingClass ring{0, std::min(kMatrixSlots, int(batches.size())), int(batches.size())};
  for (const MatrixBatch& batch : batches)
    ring.slot_bytes = std::max(ring.slot_bytes, batch.slot_bytes(*options.matrix_dtype));
  return ring;
}

// Counts four buffers of one matrix (the matrix, the next iterate, and temporary copies), four products of `side` x
// `side` elements, and the whole parameter, which is joined from its pieces.
int64_t matrix_temporaries(const MatrixShape& shape, DType dtype) {
  const int64_t side = std::min(shape.rows, shape.cols);
  return 4 * element_size(dtype) * (shape.rows * shape.cols + side * side) + shape.numel() * element_size(dtype);
}

int64_t matrix_temporaries(std::span<const UnitLayout> units, const PlanOptions& options) {
  int64_t most = 0;
  if (!options.matrix_dtype) return most;
  for (const UnitLayout& unit : units)
    for (const FlatGroup& group : unit.groups)
      for (const size_t i : group.params)
        if (group.is_matrix)
          most = std::max(most, matrix_temporaries(matrix_shape(unit.params[i].shape), *options.matrix_dtype));
  return most;
}

}  // namespace zeroshard
