#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <vector>

namespace zeroshard {

// A function of tensors, and how to compute it for one tile of its inputs at a time, so that the function's
// intermediate results exist for only one tile at a time.
struct TiledCall {
  using Tensors = std::vector<at::Tensor>;
  // Says how the results of the tiles are joined: to one tensor along the dimension that was cut, to a vector of
  // scalars, or to the sum or the mean of scalars.
  enum class Join { kAlongDim, kStack, kSum, kMean };

  std::function<at::Tensor(const Tensors& inputs)> function = nullptr;
  // If set, gets the backward pass of all tiles as an argument, and must call it once. If null, the backward pass is
  // called directly.
  std::function<void(const std::function<void()>& backward)> around_backward = nullptr;
  int64_t tiles = 1;   // the most tiles; each has ceil(length / tiles) of the length, and the last one what is left
  int64_t dim = 0;     // the dimension in which inputs are cut; if negative, counted from the last one
  size_t num_cut = 1;  // how many of the inputs are cut; each tile gets the inputs after these whole
  Join join = Join::kAlongDim;
  // If true, the forward pass computes the gradients together with the results. This works only for a sum or mean. It
  // does not work in fp16, because fp16 gradients need the loss scale of the backward pass.
  bool at_once = false;
};

// Note [Tiles]
// The loop over the tiles is one node of the graph. The inputs of the node are those of the function, and all
// parameters that the function uses. So a parameter gets one gradient per backward pass, which is the sum over the
// tiles. The sum is in fp32 for 16-bit parameters. Code that watches gradients of parameters, such as the engine, sees
// the same as without tiles. The parameters of the node are the tensors of `params` that require a gradient, and the
// leaves in the graph of the first tile. A parameter that only a later tile uses is an error. The backward pass
// computes each tile again, with the random numbers and the autocast state of the forward pass.
at::Tensor compute_tiled(TiledCall call, const TiledCall::Tensors& inputs, const TiledCall::Tensors& params);

}  // namespace zeroshard
