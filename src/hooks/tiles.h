#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <vector>

namespace zeroshard {

// Computes a function of tensors for one tile of its inputs at a time, so that its intermediate results exist for one
// tile only.
struct TiledCall {
  using Tensors = std::vector<at::Tensor>;
  // Says how the results of the tiles are joined. They become one tensor along the dimension that was cut, a vector of
  // scalars, or the sum or mean of scalars.
  enum class Join { kAlongDim, kStack, kSum, kMean };

  std::function<at::Tensor(const Tensors& inputs)> function = nullptr;
  // Called with the backward pass of all tiles, which it must call once. May be null.
  std::function<void(const std::function<void()>& backward)> around_backward = nullptr;
  int64_t tiles = 1;   // largest number; a tile has ceil(length / tiles) of the length, the last one the remainder
  int64_t dim = 0;     // dimension of the inputs that is cut; counted from the last one if negative
  size_t num_cut = 1;  // number of inputs that are cut; each tile gets the later inputs whole
  Join join = Join::kAlongDim;
  // true: the forward pass computes the gradients together with the results. This works only for a sum or mean, and not
  // in fp16, because fp16 gradients need the loss scale of the backward pass.
  bool at_once = false;
};

// Note [Tiles]
// The loop over the tiles is one node of the graph. The node takes the inputs of the function and all parameters that
// the function uses. So a parameter gets one gradient per backward pass: the sum over the tiles, which is fp32 for
// 16-bit parameters. Code that watches gradients of parameters, like the engine, sees the same as without tiles. The
// node's parameters are the tensors of `params` that require a gradient, and the leaves in the graph of the first tile.
// A parameter that only a later tile uses is an error. The backward pass computes each tile again, with the random
// numbers and the autocast state of the forward pass.
at::Tensor compute_tiled(TiledCall call, const TiledCall::Tensors& inputs, const TiledCall::Tensors& params);

}  // namespace zeroshard
