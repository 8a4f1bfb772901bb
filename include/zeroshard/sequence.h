#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

namespace zeroshard {

class Comm;

// The ranks that train on the same rows. Each rank has an equal piece of the sequence. In attention, each rank computes
// an equal part of the heads over whole rows. All functions that pass data between ranks are collective over the group,
// and throw CommError if a rank fails. In a group of one rank, exchange(), gather() and mean() return their input.
class SequenceGroup {
 public:
  // `comm` is World::sequence(); null: this rank has whole rows. The autograd graphs of exchange() and mean() share
  // ownership of `comm`, because the graphs can outlive the group.
  explicit SequenceGroup(std::shared_ptr<Comm> comm);

  int rank() const;
  int size() const;
  std::string_view transport() const;

  // Splits dimension 1 of each tensor over the S ranks of the group, and joins the pieces of the ranks along dimension
  // 2. All tensors of one dtype take one all-to-all:
  //   [batch, heads, length / S, width] -> [batch, heads / S, length, width]  before attention
  //   [batch, length, heads / S, width] -> [batch, length / S, heads, width]  after attention
  // If there are fewer heads than ranks, heads are replicated, and rank r gets head r * heads / S, rounded down.
  // Differentiable. The backward pass exchanges in the other direction, and sums the gradients of a replicated head in
  // rank order. Throws ValueError if a tensor does not have four dimensions, or if its dimension 1 is neither a
  // multiple nor a divisor of S.
  std::vector<at::Tensor> exchange(const std::vector<at::Tensor>& tensors) const;

  // Joins the `piece` of each rank along dimension 1. All pieces have the same shape. Not differentiable.
  at::Tensor gather(const at::Tensor& piece) const;

  // Returns the mean of the ranks' losses, in which the loss of each rank is weighted by that rank's `count`. A rank
  // with a count of 0 does not contribute. If all counts are 0, the mean is 0. The backward pass multiplies the
  // gradient of each rank's loss by S, the number of ranks in the group. So if all ranks of the world average their
  // gradients, the result is the gradient of the mean loss of all groups. Throws ValueError if `loss` or `count` does
  // not have exactly one element.
  at::Tensor mean(const at::Tensor& loss, const at::Tensor& count) const;

  // Returns the `numbers` of every rank, by rank. All ranks must pass equally many numbers. The exchange is one gather
  // over host memory.
  std::vector<std::vector<int64_t>> tell(const std::vector<int64_t>& numbers) const;

  // Cuts each tensor of each rank into S equal pieces along dimension 1, and sends piece i to rank i. Returns the
  // pieces that this rank gets. Element r of the result has the pieces of rank r's tensors. `mine` are this rank's
  // tensors, on the host. The tensors in `like[r]` have the shapes and dtypes of rank r's tensors, and may be meta
  // tensors. Throws ValueError if a tensor cannot be cut into S equal pieces.
  std::vector<std::vector<at::Tensor>> deal(const std::vector<at::Tensor>& mine,
                                            const std::vector<std::vector<at::Tensor>>& like) const;

  // Makes other ranks of the group fail with `reason` now if they wait for this rank.
  void abort(std::string_view reason) const noexcept;

 private:
  std::shared_ptr<Comm> comm_;
};

}  // namespace zeroshard
