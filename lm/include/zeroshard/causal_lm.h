#pragma once
#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "zeroshard/nn.h"

// Makes and loads language models of Hugging Face model directories. This header needs LibTorch's C++ API.
namespace zeroshard {

class SequenceGroup;

// Rows of token ids. A row contains one document, several packed documents, or a padded document.
struct TokenBatch {
  at::Tensor ids;  // int64, [batch, length]
  // int64, [batch, row_length()]: the number of each token's document in its row; 0 is padding. Tokens attend only to
  // tokens of their own document. Undefined: every row is one document.
  at::Tensor documents;
  // int64, [batch, row_length()]: the position of a token in its document. Undefined: the model computes the positions
  // from `documents`.
  at::Tensor positions;
  // The smallest and the largest id, if the caller knows them. Unset: the model computes both, and if the ids are on a
  // device, the host waits for the device.
  std::optional<std::pair<int64_t, int64_t>> id_range = std::nullopt;
  // Null: this rank has whole rows. Otherwise, the ranks that share these rows. Each of them has an equal piece, in the
  // order of ranks. `ids` is then this rank's piece, while `documents` and `positions` cover whole rows.
  std::shared_ptr<const SequenceGroup> sequence = nullptr;

  int64_t row_length() const;                         // length of a whole row
  at::Tensor piece_of(const at::Tensor& rows) const;  // this rank's columns of [batch, row_length()]
};

// Caches the keys and values of the tokens that a model has processed, so that the model need not process them anew for
// later tokens.
class KvCache {
 public:
  // `capacity` is the largest number of tokens of a row.
  explicit KvCache(int64_t capacity) : capacity_(capacity) {}

  int64_t length() const { return length_; }  // number of tokens of a row so far
  int64_t capacity() const { return capacity_; }
  // Appends a layer's keys and values of new tokens, each [batch, kv_heads, length, head_dim]. Returns this layer's
  // keys and values of all tokens so far. Throws ValueError if the capacity is exceeded.
  std::pair<at::Tensor, at::Tensor> append(int64_t layer, const at::Tensor& key, const at::Tensor& value);
  void advance(int64_t tokens) { length_ += tokens; }  // the caller calls it when every layer has appended

 private:
  int64_t capacity_, length_ = 0;
  std::map<int64_t, std::pair<at::Tensor, at::Tensor>> layers_;
};

// Runs the parts of a model. A part is a module with its own parameters. This class only calls `forward`. If the
// parameters are sharded, a subclass must unshard them while the part runs.
class PartRunner {
 public:
  // The forward of a part. A backward pass can call it a second time with the same input.
  using Forward = std::function<at::Tensor(const at::Tensor& input)>;

  virtual ~PartRunner() = default;
  virtual at::Tensor run(const torch::nn::Module& part, const at::Tensor& input, const Forward& forward) const;
  // Runs block `index`, one of the equal blocks that make up most of the model. By default, calls run().
  virtual at::Tensor run_block(int64_t index, const torch::nn::Module& part, const at::Tensor& input,
                               const Forward& forward) const;
};

// A decoder that predicts each next token. The parameters have the names of the tensors in the model directory's files.
class CausalLM : public torch::nn::Module {
 public:
  // Returns logits [batch, length, vocabulary] in the dtype of the parameters. Values at padding have no meaning. With
  // a cache, the batch continues where the cache ends and is appended to it. In that case `documents`, `positions` and
  // `sequence` must be unset, and the logits are only those of the last token: [batch, 1, vocabulary]. Throws
  // ValueError for a wrong shape or dtype, for an id outside the vocabulary, and for a position beyond max_length().
  at::Tensor logits(const TokenBatch& batch, const PartRunner& runner = {}, KvCache* cache = nullptr);

  struct Sizes {
    int64_t vocab_size, max_length, num_heads, num_kv_heads;
    double attention_dropout = 0;  // in training
  };
  const Sizes& sizes() const { return sizes_; }
  int64_t vocab_size() const { return sizes_.vocab_size; }
  int64_t max_length() const { return sizes_.max_length; }
  // Draws initial values for all parameters from the distributions that the architecture defines. The parameters must
  // have memory.
  void initialize(uint64_t seed);
  // Writes the values that initialize() draws for elements [begin, end) of one parameter, in row-major order, to `out`
  // on the host as fp32. Each value depends only on `seed`, the element's position and the parameter's name.
  void initial_values(uint64_t seed, const std::string& name, int64_t begin, int64_t end, float* out);
  // Declares that parameter `name` is not a part of the architecture, but for example of an adapter. initialize() draws
  // the parameter's values uniformly from [-bound, bound]. The model's files do not contain the parameter.
  void add_parameter(const std::string& name, double bound) { added_[name] = bound; }
  bool is_added(const std::string& name) const { return added_.contains(name); }

 protected:
  explicit CausalLM(const Sizes& sizes) : sizes_(sizes) {}
  // Computes the result of logits(), which has checked `batch`. batch.positions is defined, and is this rank's piece.
  virtual at::Tensor forward_logits(const TokenBatch& batch, const PartRunner& runner, KvCache* cache) = 0;
  // Fills `elements`, which are some elements of parameter `name`, with values of the parameter's initial distribution.
  virtual void initialize_parameter(const std::string& name, at::Tensor& elements, at::Generator& generator) = 0;

 private:
  Sizes sizes_;
  std::map<std::string, double> added_;
};

// Returns the values of model_type that make_causal_lm() supports.
std::vector<std::string> causal_lm_types();

// Makes the model that the text of a config.json describes, with fp32 parameters that have no memory. A ModuleEngine or
// allocate() gives them memory, with the values of initial_values() or stored_values(). Throws a ValueError that names
// `source` for an unsupported architecture, field or value, and says what is supported.
std::shared_ptr<CausalLM> make_causal_lm(const std::string& config_json, const std::string& source);
// Does the same with the config.json in a directory.
std::shared_ptr<CausalLM> make_causal_lm_of(const std::string& directory);

// Returns the values of CausalLM::initialize(seed). `model` must outlive the result.
ParameterValues initial_values(CausalLM& model, uint64_t seed);
// Returns the values in the safetensors files of a directory, of any floating-point dtype. Parameters of
// CausalLM::add_parameter() have no values there. Throws the errors of load_causal_lm().
ParameterValues stored_values(const CausalLM& model, const std::string& directory);
// Allocate those parameters of `model` that have no memory. The first function leaves their values undefined. The
// second function fills all parameters with `values`.
void allocate(CausalLM& model);
void allocate(CausalLM& model, const ParameterValues& values);

// Loads the model of a Hugging Face directory with its weights into memory. Throws a ValueError or IoError that names
// the file. The error also names a tensor that is missing, has another shape, or belongs to no parameter.
std::shared_ptr<CausalLM> load_causal_lm(const std::string& directory);

}  // namespace zeroshard
