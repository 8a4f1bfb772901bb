#include "zeroshard/activations.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "base/check.h"
#include "base/format.h"
#include "zeroshard/error.h"

// Note [Activations]
// The coefficients in the functions below hold for the model classes of the Python package transformers. They were
// found by counting the storages that autograd saves (torch.autograd.graph.saved_tensors_hooks) while one size at a
// time was changed. tests/python/plan/test_activations.py counts them again. `e` is the element size of the compute
// dtype. Norms, logits and loss are computed in fp32.
namespace zeroshard {
namespace {

struct Counted {
  double inner = 0;                  // bytes of a layer's inner MLP activations for each token; tiling avoids them
  double layer = 0, layer_once = 0;  // bytes of a decoder layer: for each token, and for each batch
  double ends = 0, ends_once = 0;    // bytes before and after the layers: for each token, and for each batch
  double logits = 0;                 // bytes for each token, including the loss and its gradients
};

// `length` is the number of keys that a token attends to. It matters for the angles of the rotary embedding, and for
// models that store attention scores.
Counted llama_like(const ModelShapes& model, double e, double length, double ranks) {
  const LayerSizes& sizes = model.sizes;
  const double h = double(model.hidden_size), i = double(sizes.intermediate), heads = double(sizes.heads);
  // In a sequence group, each rank has at least one key-value head.
  const double q = heads * double(sizes.head_dim),
               kv = std::max(double(sizes.kv_heads), ranks) * double(sizes.head_dim);
  const double norm = 4;  // the fp32 factor of a norm
  Counted counted;
  counted.inner = 4 * e * i;
  counted.layer = (8 + 4 * e) * h + counted.inner + 2 * e * (q + kv) + 4 * heads + 2 * norm;
  if (model.model_type == "qwen3")  // this model has norms of queries and keys
    counted.layer += (4 + e) * (q + kv) + norm * double(sizes.heads + sizes.kv_heads);
  if (sizes.experts > 0) {
    const double chosen = double(sizes.experts_per_token);
    counted.inner = 0;  // experts are not tiled
    counted.layer = (8 + 4 * e + 2 * e * chosen) * h + 4 * e * i * chosen + 2 * e * (q + kv) + 4 * heads + 2 * norm +
                    4.125 * double(sizes.experts) + 40 * chosen + 4;
  }
  counted.ends = (4 + 2 * e) * h + norm + 16;                   // includes the tokens and their labels
  counted.ends_once = 2 * e * double(sizes.head_dim) * length;  // the angles of the rotary embedding
  counted.logits = 12 * double(sizes.vocab);
  if (model.model_type == "gemma2") {  // four norms, attention scores in fp32, and capped logits
    counted.layer = (32 + 2 * e) * h + 4 * e * i + 4 * e * q + 8 * heads * length + 4 * norm;
    counted.layer_once = 16 * h;
    counted.ends = (8 + e) * h + norm + 16;
    counted.logits += 2 * e * double(sizes.vocab);
  }
  return counted;
}

Counted gpt2(const ModelShapes& model, double e) {
  const double h = double(model.hidden_size), i = double(model.sizes.intermediate);
  Counted counted;
  counted.inner = 5 * e * i + e * h;  // includes the mask of the MLP's dropout
  counted.layer = 9 * e * h + counted.inner + 4 * double(model.sizes.heads) + 4 * e;
  counted.ends = 3 * e * h + 2 * e + 24;
  counted.logits = 12 * double(model.sizes.vocab);
  return counted;
}

void check_sequence_parallel(const ModelShapes& model, const ActivationOptions& options) {
  const int64_t ranks = options.sequence_parallel;
  ZS_CHECK(ranks >= 1 && ranks <= options.sequence_length, "sequence_parallel must be 1 to the ",
           options.sequence_length, " tokens of a sequence, got ", ranks);
  check_shared_heads("sequence_parallel", ranks, model.sizes.heads, model.sizes.kv_heads);
}

constexpr double kLogitBytesOfTile = 256 * 1024 * 1024;

// The most inputs of checkpointed layers that are in host memory on their way to or from files. The kHostBlocks (three)
// blocks of HostActivations have one each, and a RecordStore has the input that is requested and the one that it reads
// ahead.
constexpr double kInputsOnTheWay = 5;

}  // namespace

void check_shared_heads(std::string_view name, int64_t ranks, int64_t heads, int64_t kv_heads) {
  const auto fits = [&](int64_t size) { return heads % size == 0 && (kv_heads % size == 0 || size % kv_heads == 0); };
  if (ranks == 1 || fits(ranks)) return;
  std::string sizes;
  for (int64_t size = 1; size <= heads; ++size)
    if (fits(size)) sizes += concat(sizes.empty() ? "" : ", ", size);
  throw ValueError(concat(name, " is ", ranks, ", and so many ranks cannot share ", heads, " heads and ", kv_heads,
                          " key-value heads: sizes that fit are ", sizes));
}

int64_t loss_tiles(int64_t tokens, int64_t vocabulary) {
  const double bytes = 12 * double(tokens) * double(vocabulary);
  return std::clamp<int64_t>(int64_t(std::ceil(bytes / kLogitBytesOfTile)), 1, std::max<int64_t>(tokens, 1));
}

int64_t mlp_tiles(int64_t length, int64_t hidden) {
  return std::max<int64_t>(1, (length + hidden - 1) / hidden);
}

PlannedActivations plan_activations(const ModelShapes& model, const ActivationOptions& options) {
  ZS_CHECK(options.batch >= 1, "a micro-batch has at least one sequence, not ", options.batch);
  ZS_CHECK(options.sequence_length >= 1, "a sequence has at least one token, not ", options.sequence_length);
  const double e = double(element_size(options.compute_dtype)), length = double(options.sequence_length);
  check_sequence_parallel(model, options);
  const double tokens = double(options.tokens()), num_layers = double(model.sizes.layers);
  Counted counted =
      model.model_type == "gpt2" ? gpt2(model, e) : llama_like(model, e, length, double(options.sequence_parallel));
  const int64_t parts = options.tiled && counted.inner > 0 ? mlp_tiles(options.piece_length(), model.hidden_size) : 1;
  if (parts > 1) counted.layer -= counted.inner;
  if (options.tiled) counted.logits /= double(loss_tiles(int64_t(tokens), model.sizes.vocab));
  // In a sequence group, each rank keeps attention's output twice: for its own heads, and for its own piece of the
  // sequence, which the next projection reads.
  const double queries = double(model.sizes.heads) * double(model.sizes.head_dim);
  const double exchanged = options.sequence_parallel > 1 ? e * queries * tokens : 0;
  const double layer = counted.layer * tokens + counted.layer_once + exchanged;
  PlannedActivations planned;
  planned.ends = counted.ends * tokens + counted.ends_once / double(options.sequence_parallel);
  planned.at_most = counted.logits * tokens;
  planned.layers = num_layers * layer;
  // Backward has the gradient of only one of an MLP's inner activations at a time.
  const double inner_grads = e * double(model.sizes.intermediate) * tokens;
  const double of_tile = parts > 1 ? (counted.inner * tokens + inner_grads) / double(parts) : 0;
  planned.at_most = std::max(planned.at_most, of_tile);
  if (options.checkpointing) {
    const double input = e * double(model.hidden_size) * tokens;
    const bool stay = options.checkpoints == Tier::kDevice;
    // If inputs are offloaded, the device has the input that is in use and the next one, which is being copied back.
    planned.layers = (stay ? num_layers : std::min(num_layers, 2.0)) * input;
    if (!stay) planned.elsewhere = num_layers * input;
    if (options.on_device && options.checkpoints == Tier::kFile)
      planned.on_the_way = std::min(num_layers, kInputsOnTheWay) * input;
    planned.at_most = std::max(planned.at_most, layer + (parts > 1 ? of_tile : inner_grads));
  }
  return planned;
}

}  // namespace zeroshard
