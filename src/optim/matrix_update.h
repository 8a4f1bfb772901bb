#pragma once
#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "comm/comm.h"
#include "device/flat_buffer.h"
#include "optim/matrix_rule.h"
#include "optim/sharded_optimizer.h"
#include "plan/matrix_plan.h"

namespace zeroshard {

// Updates the matrices of an optimizer that needs them whole, such as Muon, one batch of groups at a time. Each matrix
// is sharded over the ranks, and one rank is its owner. Each rank sends its pieces of the matrices to their owners,
// which transform the matrices and send updates back. While the owners transform one batch, the pieces of the next
// batch and the updates of the previous batch are on their way. A world of one rank sends nothing.
class MatrixUpdate {
 public:
  struct Options {
    OptimizerConfig::Type type = OptimizerConfig::Type::kMuon;
    at::Device device = at::kCPU;
    DType dtype = DType::kFloat32;  // the dtype in which pieces and updates are sent
    RingClass ring;
  };
  // `batches` must have all matrices of the run. `groups` are the groups of all batches, batch after batch. Arguments
  // passed by reference must outlive this object. Collective, because it calls Comm::allocate().
  MatrixUpdate(std::vector<MatrixBatch> batches, std::vector<ShardedGroup*> groups, const ShardedOptimizer& optimizer,
               Options options, Comm& comm, Ledger& ledger);
  MatrixUpdate(const MatrixUpdate&) = delete;
  MatrixUpdate& operator=(const MatrixUpdate&) = delete;

  struct Inputs {
    std::function<UpdateGradients(const ShardedGroup&)> gradients;
    std::span<const ParamGroupOptions> options;
    // Returns for each parameter whether some rank has a gradient.
    std::function<const std::vector<bool>&(const ShardedGroup&)> has_grad;
    float grad_scale = 1;  // as in ShardedOptimizer::update()
  };
  // Updates all groups. Collective. Throws ValueError if the options need another Options::dtype. After any other error
  // on a rank, aborts `comm`, so that the update fails on all ranks, which wait for one another.
  void update(const Inputs& inputs);

 private:
  struct Slot;
  void update_batches(const Inputs& inputs);
  using Runs = std::vector<ShardedOptimizer::Run>;

  // Returns the groups of a batch, which are a part of groups_.
  std::span<ShardedGroup* const> groups_of(size_t batch) const;
  Slot slot(size_t batch) const;
  // Called for each piece that this rank sends. `here` is where the piece is in Slot::updates. `travels` is the memory
  // from which the piece is sent, and in which its update comes back.
  using UsePiece = std::function<void(const at::Tensor& here, const at::Tensor& travels)>;
  void use_own_pieces(size_t batch, const Slot& slot, const UsePiece& use) const;
  // Updates momenta, and starts to send the pieces to the owners. Returns null if there is one rank.
  std::unique_ptr<Work> send(size_t batch, const Inputs& inputs);
  void accumulate(ShardedGroup& group, const Inputs& inputs, const Runs& runs, const at::Tensor& updates) const;
  // Transforms the matrices that this rank owns, and starts to send their updates back. Returns null if there is one
  // rank.
  std::unique_ptr<Work> transform(size_t batch, const Inputs& inputs);
  void transform(size_t batch, size_t matrix, const Inputs& inputs, std::span<const at::Tensor> pieces) const;
  // Applies the updates that have come back. If the ranks update whole groups, first gathers the updates of all ranks.
  void apply(size_t batch, const Inputs& inputs);

  std::vector<MatrixBatch> batches_;
  std::vector<ShardedGroup*> groups_;
  std::vector<size_t> first_of_;  // for each batch: the index of its first group
  const ShardedOptimizer& optimizer_;
  Options options_;
  Comm& comm_;
  Ledger& ledger_;
  std::vector<FlatBuffer> slots_;
  std::vector<Runs> runs_;  // for each group: the runs that this step updates
};

}  // namespace zeroshard
