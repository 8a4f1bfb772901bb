#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "comm/comm.h"

namespace zeroshard {

// The ranks that train on the same rows: each has an equal piece of the sequence, and attends over whole rows with an
// equal part of the heads. All functions are collective, over these ranks alone.
class SequenceGroup {
 public:
  // Graphs of exchange() and mean() share the communicator, as they may outlive the group.
  explicit SequenceGroup(std::shared_ptr<Comm> comm) : comm_(std::move(comm)) {}

  int rank() const { return comm_->rank(); }
  int size() const { return comm_->world_size(); }
  std::string_view transport() const { return comm_->transport(); }

  // Splits dimension 1 of each tensor over the ranks and joins dimension 2, by one all-to-all for tensors of one dtype:
  //   [batch, heads, length / S, width] -> [batch, heads / S, length, width]  before attention
  //   [batch, length, heads / S, width] -> [batch, length / S, heads, width]  after it
  // Fewer than S heads are replicated: rank r gets head r * heads / S. Differentiable: the backward exchanges in the
  // other direction, and sums the gradients of a replicated head in rank order. Throws ValueError where a dimension 1
  // is neither a multiple nor a divisor of S.
  std::vector<at::Tensor> exchange(const std::vector<at::Tensor>& tensors) const;

  // Joins dimension 1 of the ranks' pieces, which have one shape. Not differentiable.
  at::Tensor gather(const at::Tensor& piece) const;

  // The mean of the ranks' losses, each weighted by its `count`; a rank with a count of 0 does not add to it.
  // Differentiable as if every rank computed its own mean: a mean of the gradients over all ranks of the world is the
  // gradient of the mean over the groups.
  at::Tensor mean(const at::Tensor& loss, const at::Tensor& count) const;

  // Each rank's numbers, by rank; all have as many. They go over the host, in one small gather.
  std::vector<std::vector<int64_t>> tell(const std::vector<int64_t>& numbers) const;

  // This rank's pieces of the rows of every rank, by rank. `mine` are tensors of the host whose dimension 1 S divides;
  // `like[r]` have the shapes and dtypes that rank r gives, and need no memory.
  std::vector<std::vector<at::Tensor>> deal(const std::vector<at::Tensor>& mine,
                                            const std::vector<std::vector<at::Tensor>>& like) const;

  void abort(std::string_view reason) const noexcept { comm_->abort(reason); }

 private:
  std::shared_ptr<Comm> comm_;
};

}  // namespace zeroshard
