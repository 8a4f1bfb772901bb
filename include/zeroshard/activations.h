#pragma once
#include <cstdint>
#include <string_view>

#include "zeroshard/dtype.h"
#include "zeroshard/plan.h"
#include "zeroshard/tier.h"

// Plans how many bytes of activations a rank holds while it trains. The planner needs only the shapes of the model.
namespace zeroshard {

// Returns the number of tiles in which zeroshard.tile() computes the loss of `tokens` tokens. The logits of one tile
// take at most 256 MiB.
int64_t loss_tiles(int64_t tokens, int64_t vocabulary);
// Returns the number of tiles in which zeroshard.tile() computes an MLP on a sequence of `length` tokens. A tile has at
// most `hidden` tokens, where `hidden` is the number of elements of a hidden state.
int64_t mlp_tiles(int64_t length, int64_t hidden);

// Throws ValueError if `ranks` ranks of a sequence group cannot share a model's `heads` attention heads and `kv_heads`
// heads of keys and values. The message begins with `name`, the setting that gives the number of ranks, and lists the
// numbers of ranks that fit.
void check_shared_heads(std::string_view name, int64_t ranks, int64_t heads, int64_t kv_heads);

struct ActivationOptions {
  int64_t batch = 1;  // sequences of one micro-batch
  int64_t sequence_length = 1;
  int64_t sequence_parallel = 1;  // ranks that share a sequence
  DType compute_dtype = DType::kBFloat16;
  bool checkpointing = false;  // true: decoder layers keep only their inputs, and the backward pass computes them anew
  Tier checkpoints = Tier::kDevice;  // the tier of the kept inputs of layers, from zeroshard.offload.activations
  bool on_device = true;             // true: ranks run on a GPU or another accelerator; false: on the CPU
  bool tiled = false;                // true: zeroshard.tile() computes the loss and the MLPs in tiles

  // Returns how many tokens of each sequence one rank has. The loader pads sequences so that all ranks have the same
  // number of tokens.
  int64_t piece_length() const { return (sequence_length + sequence_parallel - 1) / sequence_parallel; }
  int64_t tokens() const { return batch * piece_length(); }
};

// Bytes of activations on the device at the moment of a step when activations need the most memory.
struct PlannedActivations {
  double layers = 0;  // tensors that autograd keeps for the decoder layers
  double ends = 0;    // tensors that autograd keeps for the embedding and the final norm
  // Bytes of the largest temporary tensors on top of `layers` and `ends`. These tensors are either the logits with the
  // loss and its gradients, or the decoder layer or MLP tile that the backward pass computes again.
  double at_most = 0;
  // Bytes that total() does not include. `elsewhere` counts the kept layer inputs on the tier
  // ActivationOptions::checkpoints. `on_the_way` counts the inputs that are in host memory at one time while they move
  // between a device and files.
  double elsewhere = 0, on_the_way = 0;

  double total() const { return layers + ends + at_most; }
};

// Returns the planned activations of a model of transformers 5 in eager mode: the bytes of the tensors that autograd
// saves. The plan assumes attention that stores no scores (SDPA). The plan counts the scores only for gemma2, which
// stores them because it caps the logits of attention. The plan leaves out padding and the temporary memory of single
// operators. A rank of a sequence group keeps either its piece of the sequence for all heads or the whole sequence for
// its own heads. The plan does not say which, because both take the same memory. Throws ValueError for a batch or a
// length below 1, and for ranks that cannot share the heads or the sequence.
PlannedActivations plan_activations(const ModelShapes& model, const ActivationOptions& options);

}  // namespace zeroshard
