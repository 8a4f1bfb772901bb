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
  // Says how the results of the tiles are joined. kAlongDim joins tensors along the dimension in which the inputs were
  // cut. The other ways are for scalars. kStack makes a vector of them, kSum their sum, and kMean their mean.
  enum class Join { kAlongDim, kStack, kSum, kMean };

  std::function<at::Tensor(const Tensors& inputs)> function = nullptr;
  // If set, this function gets the backward pass of all tiles as an argument, and must call it once. If null, the
  // backward pass is called directly.
  std::function<void(const std::function<void()>& backward)> around_backward = nullptr;
  int64_t tiles = 1;   // the most tiles; each has ceil(length / tiles) of the length, and the last one what is left
  int64_t dim = 0;     // the dimension in which inputs are cut; if negative, counted from the last one
  size_t num_cut = 1;  // how many inputs, from the first on, are cut; each tile gets the other inputs whole
  Join join = Join::kAlongDim;
  // If true, the forward pass computes the gradients together with the results. Allowed only for kSum and kMean. Has no
  // effect without grad mode. Has no effect in fp16 either, because fp16 gradients need the loss scale of the backward
  // pass.
  bool at_once = false;
};

// Calls the function for one tile after another, and returns the joined results. If there is at most one tile, calls
// the function once for the whole inputs, and Note [Tiles] does not apply.
//
// Note [Tiles]
// In grad mode, the loop over the tiles is one node of the graph. The inputs of the node are those of the function, and
// all parameters that the function uses. So a parameter gets one gradient per backward pass, which is the sum over the
// tiles. The sum is in fp32 for 16-bit parameters. Code that watches gradients of parameters, such as the engine, sees
// the same as without tiles.
//
// The parameters of the node are the leaves among `params` that require a gradient, and the leaves in the graph of the
// first tile. The backward pass computes each tile again, with the random numbers and the autocast state of the forward
// pass. It throws StateError if a later tile uses another parameter, or if a parameter was changed in place after the
// forward pass. If the forward pass computes the gradients (at_once), the backward pass computes no tile again, the
// leaves in the graphs of all tiles are parameters of the node, and a second backward pass throws StateError. A
// backward pass with create_graph=True always throws StateError.
at::Tensor compute_tiled(TiledCall call, const TiledCall::Tensors& inputs, const TiledCall::Tensors& params);

}  // namespace zeroshard
