#include "optim/matrix_update.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "base/align.h"
#include "base/check.h"
#include "base/format.h"
#include "device/cut.h"
#include "device/dtype.h"

namespace zeroshard {
namespace {

// The number of elements that accumulate() takes at a time, which limits its temporary memory.
constexpr int64_t kAccumulatedNumel = 1 << 22;

Span span_of(const at::Tensor& tensor, DType dtype) {
  return {tensor.numel() > 0 ? tensor.data_ptr() : nullptr, tensor.numel(), dtype};
}

std::vector<int64_t> transposed(std::span<const int64_t> counts, int world_size) {
  std::vector<int64_t> result;
  for (int to = 0; to < world_size; ++to)
    for (int from = 0; from < world_size; ++from) result.push_back(counts[size_t(from * world_size + to)]);
  return result;
}

}  // namespace

// Views of the slot of memory for one batch.
struct MatrixUpdate::Slot {
  at::Tensor updates;    // the updates of the groups, one after another
  at::Tensor sent, got;  // pieces, in the form in which they are sent
  // For each piece of the batch: the part of `got` that has the piece, if this rank owns the piece's matrix. Undefined
  // for other pieces, and if there is only one rank.
  std::vector<at::Tensor> whole;
};

MatrixUpdate::MatrixUpdate(std::vector<MatrixBatch> batches, std::vector<ShardedGroup*> groups,
                           const ShardedOptimizer& optimizer, Options options, Comm& comm, Ledger& ledger)
    : batches_(std::move(batches)),
      groups_(std::move(groups)),
      optimizer_(optimizer),
      options_(std::move(options)),
      comm_(comm),
      ledger_(ledger),
      runs_(groups_.size()) {
  size_t first = 0;
  for (const MatrixBatch& batch : batches_) {
    first_of_.push_back(first);
    first += batch.groups.size();
  }
  ZS_ASSERT(first == groups_.size(), "batches have ", first, " groups, the run has ", groups_.size());
  for (int i = 0; i < options_.ring.slots; ++i)
    slots_.emplace_back(comm_, options_.ring.slot_bytes, options_.device, ledger_, Category::kReduceRing, "matrices");
}

std::span<ShardedGroup* const> MatrixUpdate::groups_of(size_t batch) const {
  return std::span(groups_).subspan(first_of_[batch], batches_[batch].groups.size());
}

MatrixUpdate::Slot MatrixUpdate::slot(size_t index) const {
  const MatrixBatch& batch = batches_[index];
  const FlatBuffer& memory = slots_[index % slots_.size()];
  const at::ScalarType type = to_scalar_type(options_.dtype);
  const int64_t size = element_size(options_.dtype);
  const int rank = comm_.rank(), world_size = comm_.world_size();
  int64_t sent = 0, got = 0;
  for (int peer = 0; peer < world_size && world_size > 1; ++peer) {
    sent += batch.counts[size_t(rank * world_size + peer)];
    got += batch.counts[size_t(peer * world_size + rank)];
  }
  const int64_t first = align_up(batch.numel * size, kMatrixAlignment);
  Slot slot{memory.view(type, 0, batch.numel), memory.view(type, first, sent),
            memory.view(type, first + align_up(batch.most_sent * size, kMatrixAlignment), got),
            std::vector<at::Tensor>(batch.pieces.size())};
  int64_t next = 0;
  for (size_t i = 0; i < batch.pieces.size() && world_size > 1; ++i) {
    const MatrixPiece& piece = batch.pieces[i];
    if (batch.matrices[piece.matrix].owner != rank) continue;
    slot.whole[i] = cut(slot.got, {next, next + piece.positions.size()});
    next += piece.positions.size();
  }
  return slot;
}

void MatrixUpdate::accumulate(ShardedGroup& group, const Inputs& inputs, const Runs& runs,
                              const at::Tensor& updates) const {
  const MatrixRule& rule = matrix_rule(options_.type);
  const UpdateGradients gradients = inputs.gradients(group);
  for (const ShardedOptimizer::Run& run : runs) {
    const ParamGroupOptions& options = inputs.options[size_t(run.param_group)];
    const auto use = [&](Range part, const at::Tensor& state, const at::Tensor& values) {
      for (int64_t begin = 0; begin < part.size(); begin += kAccumulatedNumel) {
        const Range piece{begin, std::min(begin + kAccumulatedNumel, part.size())};
        at::Tensor grad = cut(values, piece).to(at::kFloat);
        if (inputs.grad_scale != 1) grad = grad.mul(inputs.grad_scale);
        cut(updates, piece + part.begin).copy_(rule.accumulate(cut(state, piece), grad, options));
      }
    };
    group.states().lend_one(run.range, 0, Array::Access::kModify, [&](Range part, const at::Tensor& state) {
      if (!state.is_cpu()) return use(part, state, gradients.values.view(part));
      gradients.lend_on_host(
          part, [&](Range piece, const at::Tensor& values) { use(piece, cut(state, piece - part.begin), values); });
    });
  }
}

void MatrixUpdate::use_own_pieces(size_t index, const Slot& slot, const UsePiece& use) const {
  const MatrixBatch& batch = batches_[index];
  int64_t next = 0;
  for (const MatrixPiece& piece : batch.pieces) {
    if (piece.rank != comm_.rank()) continue;
    const size_t group = batch.matrices[piece.matrix].group;
    const int64_t begin = batch.groups[group].first + piece.positions.begin - groups_of(index)[group]->updated().begin;
    use(cut(slot.updates, {begin, begin + piece.positions.size()}),
        cut(slot.sent, {next, next + piece.positions.size()}));
    next += piece.positions.size();
  }
}

std::unique_ptr<Work> MatrixUpdate::send(size_t index, const Inputs& inputs) {
  const MatrixBatch& batch = batches_[index];
  const Slot slot = this->slot(index);
  const std::span<ShardedGroup* const> groups = groups_of(index);
  for (size_t g = 0; g < groups.size(); ++g) {
    Runs& runs = runs_[first_of_[index] + g];
    runs = ShardedOptimizer::count_step(*groups[g], inputs.has_grad(*groups[g]));
    const MatrixBatch::Group& own = batch.groups[g];
    accumulate(*groups[g], inputs, runs, cut(slot.updates, {own.first, own.first + own.numel}));
  }
  if (comm_.world_size() == 1) return nullptr;
  use_own_pieces(index, slot, [](const at::Tensor& here, const at::Tensor& travels) { travels.copy_(here); });
  return comm_.all_to_all_v(span_of(slot.got, options_.dtype), span_of(slot.sent, options_.dtype), batch.counts,
                            "matrices to their owners");
}

// Transforms the matrices of one parameter, in place. `pieces` make up the parameter. Does nothing if the parameter
// belongs to no param group, or if no rank has a gradient of it.
void MatrixUpdate::transform(size_t index, size_t matrix, const Inputs& inputs,
                             std::span<const at::Tensor> pieces) const {
  const MatrixBatch::Matrix& own = batches_[index].matrices[matrix];
  const ShardedGroup& group = *groups_of(index)[own.group];
  const int param_group = group.param_group(own.param);
  if (param_group < 0 || !inputs.has_grad(group)[own.param]) return;
  const ParamGroupOptions& options = inputs.options[size_t(param_group)];
  std::optional<Temporary> temporary;
  if (!options_.device.is_cpu()) temporary.emplace(ledger_, matrix_temporaries(own.shape, options_.dtype));
  const at::Tensor whole = pieces.size() == 1 ? pieces[0] : at::cat(at::ITensorListRef(pieces.data(), pieces.size()));
  const at::Tensor each = whole.view({own.shape.count, own.shape.rows, own.shape.cols});
  for (int64_t i = 0; i < own.shape.count; ++i) each[i].copy_(matrix_rule(options_.type).transform(each[i], options));
  if (pieces.size() == 1) return;
  int64_t next = 0;
  for (const at::Tensor& piece : pieces) {
    piece.copy_(cut(whole, {next, next + piece.numel()}));
    next += piece.numel();
  }
}

std::unique_ptr<Work> MatrixUpdate::transform(size_t index, const Inputs& inputs) {
  const MatrixBatch& batch = batches_[index];
  const Slot slot = this->slot(index);
  for (size_t m = 0; m < batch.matrices.size(); ++m) {
    if (batch.matrices[m].owner != comm_.rank()) continue;
    std::vector<at::Tensor> pieces;
    if (comm_.world_size() == 1) {
      const ShardedGroup& group = *groups_of(index)[batch.matrices[m].group];
      const Range range = group.layout().param(batch.matrices[m].param);
      const int64_t first = batch.groups[batch.matrices[m].group].first;
      pieces.push_back(cut(slot.updates, range + first));
    } else {
      for (const size_t i : batch.pieces_of(m)) pieces.push_back(slot.whole[i]);
    }
    if (!pieces.empty() && batch.matrices[m].shape.numel() > 0) transform(index, m, inputs, pieces);
  }
  if (comm_.world_size() == 1) return nullptr;
  return comm_.all_to_all_v(span_of(slot.sent, options_.dtype), span_of(slot.got, options_.dtype),
                            transposed(batch.counts, comm_.world_size()), "updates of matrices");
}

void MatrixUpdate::apply(size_t index, const Inputs& inputs) {
  const MatrixBatch& batch = batches_[index];
  const Slot slot = this->slot(index);
  const std::span<ShardedGroup* const> groups = groups_of(index);
  if (comm_.world_size() > 1)
    use_own_pieces(index, slot, [](const at::Tensor& here, const at::Tensor& travels) { here.copy_(travels); });
  for (size_t g = 0; g < groups.size(); ++g) {
    const MatrixBatch::Group& own = batch.groups[g];
    const at::Tensor updates = cut(slot.updates, {own.first, own.first + own.numel});
    if (groups[g]->place().updates_whole() && comm_.world_size() > 1) {
      const Range mine = groups[g]->mine();
      const auto work = comm_.all_gather(span_of(updates, options_.dtype), span_of(cut(updates, mine), options_.dtype),
                                         "updates of matrices");
      work->drain();
    }
    optimizer_.apply(*groups[g], updates, runs_[first_of_[index] + g], inputs.options, inputs.has_grad(*groups[g]));
  }
}

void MatrixUpdate::update(const Inputs& inputs) {
  const at::NoGradGuard no_grad;
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  if (batches_.empty()) return;
  for (const ParamGroupOptions& options : inputs.options)
    ZS_CHECK(!options.use_muon || !options.ns_gram || options_.dtype == DType::kFloat32,
             "ns_method is now 'gram', but was 'standard' when the engine was made. Ranks of such an engine exchange ",
             "momenta in bf16, which 'gram' does not support: make a new engine with 'gram'");
  try {
    update_batches(inputs);
  } catch (const std::exception& error) {  // other ranks wait for matrices from this rank
    comm_.abort(concat("rank ", comm_.rank(), " failed in an update of matrices: ", error.what()));
    throw;
  }
}

void MatrixUpdate::update_batches(const Inputs& inputs) {
  std::unique_ptr<Work> coming = send(0, inputs), going;
  // Applies the updates of a batch. First waits until they have come back, and until other ranks have read this rank's
  // part of the slot, because another batch uses the slot next.
  const auto end = [&](size_t batch) {
    if (going) going->drain();
    apply(batch, inputs);
  };
  for (size_t batch = 0; batch < batches_.size(); ++batch) {
    std::unique_ptr<Work> next;
    if (batch + 1 < batches_.size()) next = send(batch + 1, inputs);
    if (coming) coming->wait();
    std::unique_ptr<Work> back = transform(batch, inputs);
    if (batch > 0) end(batch - 1);
    going = std::move(back);
    coming = std::move(next);
  }
  end(batches_.size() - 1);
}

}  // namespace zeroshard
