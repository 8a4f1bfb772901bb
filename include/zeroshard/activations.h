#pragma once
#include <cstdint>
#include <string_view>

#include "zeroshard/dtype.h"
#include "zeroshard/plan.h"
#include "zeroshard/tier.h"

// How many bytes of activations a rank holds while it trains, from shapes alone.
namespace zeroshard {

// In how many tiles zeroshard.tile() computes a loss of so many tokens: one tile's logits take at most 256 MiB.
int64_t loss_tiles(int64_t tokens, int64_t vocabulary);
// And an MLP: one tile of a sequence has as many tokens as the hidden states have elements, at most.
int64_t mlp_tiles(int64_t length, int64_t hidden);

// Throws ValueError with the sizes that fit if so many ranks of a sequence group cannot share a model's heads. `name`
// is what the number of ranks is called there.
void check_shared_heads(std::string_view name, int64_t ranks, int64_t heads, int64_t kv_heads);

struct ActivationOptions {
  int64_t batch = 1;  // sequences of one micro-batch
  int64_t sequence_length = 1;
  int64_t sequence_parallel = 1;  // ranks that share a sequence
  DType compute_dtype = DType::kBFloat16;
  bool checkpointing = false;  // each decoder layer keeps its input alone, and is computed again in the backward pass
  Tier checkpoints = Tier::kDevice;  // where these inputs lie: zeroshard.offload.activations
  bool on_device = true;             // ranks run on a GPU or the like, beside the host
  bool tiled = false;                // loss and MLPs are computed in tiles, as by zeroshard.tile()

  // A rank has so many tokens of each sequence. The loader fills sequences up so that all pieces are equal.
  int64_t piece_length() const { return (sequence_length + sequence_parallel - 1) / sequence_parallel; }
  int64_t tokens() const { return batch * piece_length(); }
};

// What lies on the device when most of it is in use.
struct PlannedActivations {
  double layers = 0;  // what autograd keeps of the decoder layers
  double ends = 0;    // of the embedding and the final norm
  // Besides: the logits and the loss with its gradients, or the layer or the tile of an MLP that is computed again.
  double at_most = 0;
  // Not in the total: inputs of layers on the tier of the options, and of these what the host holds at most on its way
  // between a device and files.
  double elsewhere = 0, on_the_way = 0;

  double total() const { return layers + ends + at_most; }
};

// For the classes of transformers 5 in eager mode, each with attention that stores no scores (SDPA); gemma2, whose
// logits of attention are capped, stores them. Counted from what autograd saves. Padding and the temporary memory of
// single operators are left out. A rank of a sequence group keeps its piece of the sequence for all heads, or the whole
// sequence for its heads, which is as much. Throws ValueError for a batch or a length below 1, and for ranks that
// cannot share the heads or the sequence.
PlannedActivations plan_activations(const ModelShapes& model, const ActivationOptions& options);

}  // namespace zeroshard
