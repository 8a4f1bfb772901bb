#pragma once
#include <cstdint>
#include <string_view>

#include "zeroshard/dtype.h"
#include "zeroshard/plan.h"
#include "zeroshard/tier.h"

// Plans how many bytes of activations a rank holds while it trains. The planner needs only the shapes of the model.
namespace zeroshard {

// Returns the number of tiles in which zeroshard.tile() computes the loss of `tokens` tokens. The logits of one tile,
// with the loss and its gradients (12 bytes for each logit), take about 256 MiB at most. A tile has at least one token.
int64_t loss_tiles(int64_t tokens, int64_t vocabulary);
// Returns the number of tiles in which zeroshard.tile() computes an MLP on a sequence of `length` tokens. A tile has at
// most `hidden` tokens, where `hidden` is the number of elements of a hidden state.
int64_t mlp_tiles(int64_t length, int64_t hidden);

// Throws ValueError if a model's heads cannot be divided among the `ranks` ranks of a sequence group. A single rank
// always has all heads. Several ranks need a number of attention heads, `heads`, that is a multiple of `ranks`. The
// number of heads of keys and values, `kv_heads`, must be a multiple or a divisor of `ranks`. The message begins with
// `name`, the setting that gives the number of ranks, and lists the numbers of ranks that fit.
void check_shared_heads(std::string_view name, int64_t ranks, int64_t heads, int64_t kv_heads);

struct ActivationOptions {
  int64_t batch = 1;  // sequences of one micro-batch
  int64_t sequence_length = 1;
  int64_t sequence_parallel = 1;  // ranks among which a sequence is divided
  DType compute_dtype = DType::kBFloat16;
  bool checkpointing = false;        // true: decoder layers keep only their inputs, and are computed again in backward
  Tier checkpoints = Tier::kDevice;  // the tier of the kept inputs of layers, from zeroshard.offload.activations
  bool on_device = true;             // true: ranks run on a GPU or another accelerator; false: on the CPU
  bool tiled = false;                // true: zeroshard.tile() computes the loss and the MLPs in tiles

  // Returns how many tokens of each sequence one rank has. The loader pads sequences so that all ranks have the same
  // number of tokens.
  int64_t piece_length() const { return (sequence_length + sequence_parallel - 1) / sequence_parallel; }
  int64_t tokens() const { return batch * piece_length(); }
};

// Bytes of activations at the moment of a step when activations need the most device memory. A member counts bytes on
// the device unless its comment says otherwise.
struct PlannedActivations {
  double layers = 0;  // tensors that autograd keeps for the decoder layers
  double ends = 0;    // tensors that autograd keeps for the embedding and the final norm
  // Bytes of the largest temporary tensors on top of `layers` and `ends`. These tensors are the logits with the loss
  // and its gradients, or an MLP tile that the backward pass computes again, or with checkpointing the decoder layer
  // that the backward pass computes again.
  double at_most = 0;
  // Bytes that total() does not include. `elsewhere` counts the kept layer inputs if their tier,
  // ActivationOptions::checkpoints, is not the device. `on_the_way` counts the inputs that are in host memory at one
  // time while they move between a device and files.
  double elsewhere = 0, on_the_way = 0;

  double total() const { return layers + ends + at_most; }
};

// Returns the planned activations of a model of transformers 5 in eager mode: the bytes of the tensors that autograd
// saves, and of the largest temporary tensors. The plan assumes attention that stores no scores (SDPA). The plan counts
// the scores only for gemma2, which stores them because it caps the logits of attention. The plan leaves out padding
// and the temporary memory of single operators. In a sequence group, autograd keeps some tensors of attention for this
// rank's piece of the sequence with all heads, and others for the whole sequence with this rank's heads. Both forms
// take the same memory, so the plan does not distinguish them. It counts only the output of attention twice, because
// that tensor is kept in both forms. Throws ValueError for a batch or a length below 1, for more ranks in a sequence
// group than tokens in a sequence, and for the reasons of check_shared_heads().
PlannedActivations plan_activations(const ModelShapes& model, const ActivationOptions& options);

}  // namespace zeroshard
