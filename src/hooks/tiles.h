#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <vector>

namespace zeroshard {

// A function of tensors that is computed for one tile of its inputs at a time, so that its intermediate results exist
// for one tile alone.
struct TiledCall {
  using Tensors = std::vector<at::Tensor>;
  // What the results of the tiles become: one tensor along the dimension that was cut, or a vector, the sum or the mean
  // of scalars.
  enum class Join { kAlongDim, kStack, kSum, kMean };

  std::function<at::Tensor(const Tensors& inputs)> function = nullptr;
  // Called with the loop over the tiles of a backward pass, which it is to call once. May be null.
  std::function<void(const std::function<void()>& loop)> around_backward = nullptr;
  int64_t tiles = 1;   // at most: a tile has ceil(length / tiles) of the length, the last one what is left
  int64_t dim = 0;     // of the inputs that is cut; counted from the last one if negative
  size_t num_cut = 1;  // how many inputs are cut; those behind them are given whole to each tile
  Join join = Join::kAlongDim;
  // The gradients are computed in the forward pass, beside the results. A sum or mean alone, and not in fp16, where
  // gradients need the scale of the loss.
  bool at_once = false;
};

// Note [Tiles]
// The loop over the tiles is one node of the graph, whose inputs are those of the function and all parameters that it
// uses: a parameter gets one gradient a backward pass, the sum over the tiles, which is fp32 for 16-bit parameters. So
// everything that watches gradients of parameters, as the engine does, sees what it sees without tiles. The parameters
// are those of `params` that require a gradient, and those that the graph of the first tile leads to. A parameter that
// only a later tile uses is an error.
// The backward pass computes each tile again, with the random numbers and the autocast of the forward pass.
at::Tensor compute_tiled(TiledCall call, const TiledCall::Tensors& inputs, const TiledCall::Tensors& params);

}  // namespace zeroshard
