#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

namespace zeroshard {

class Comm;

// The ranks that train on the same rows. Each has an equal piece of the sequence, and attends over whole rows with an
// equal part of the heads. All functions are collective over these ranks only, and throw CommError if one fails.
class SequenceGroup {
 public:
  // `comm` is World::sequence(); null: this rank has whole rows. Graphs of exchange() and mean() share the
  // communicator, because they may outlive the group.
  explicit SequenceGroup(std::shared_ptr<Comm> comm);

  int rank() const;
  int size() const;
  std::string_view transport() const;

  // Splits dimension 1 of each tensor over the ranks and joins dimension 2, by one all-to-all for tensors of one dtype:
  //   [batch, heads, length / S, width] -> [batch, heads / S, length, width]  before attention
  //   [batch, length, heads / S, width] -> [batch, length / S, heads, width]  after it
  // If there are fewer than S heads, they are replicated: rank r gets head r * heads / S. Differentiable: the backward
  // exchanges in the other direction, and sums the gradients of a replicated head in rank order. Throws ValueError if a
  // dimension 1 is neither a multiple nor a divisor of S.
  std::vector<at::Tensor> exchange(const std::vector<at::Tensor>& tensors) const;

  // Joins the ranks' pieces, which have one shape, along dimension 1. Not differentiable.
  at::Tensor gather(const at::Tensor& piece) const;

  // Returns the mean of the ranks' losses, each weighted by its `count`. A rank with a count of 0 does not contribute.
  // Its backward multiplies by the number of ranks, so that the mean of the gradients over all ranks of the world is
  // the gradient of the mean over the groups.
  at::Tensor mean(const at::Tensor& loss, const at::Tensor& count) const;

  // Returns the numbers of every rank, by rank. All ranks pass equally many numbers. One small gather over host memory
  // sends them.
  std::vector<std::vector<int64_t>> tell(const std::vector<int64_t>& numbers) const;

  // Cuts the tensors of each rank into S equal pieces along dimension 1, and returns this rank's pieces, by source
  // rank. `mine` are host tensors. `like[r]` have the shapes and dtypes of rank r's tensors, and may be meta tensors.
  std::vector<std::vector<at::Tensor>> deal(const std::vector<at::Tensor>& mine,
                                            const std::vector<std::vector<at::Tensor>>& like) const;

  // Makes ranks of the group that wait for this one fail with `reason` now.
  void abort(std::string_view reason) const noexcept;

 private:
  std::shared_ptr<Comm> comm_;
};

}  // namespace zeroshard
