#pragma once
#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

// Language models of Hugging Face model directories. This header needs LibTorch's C++ API.
namespace zeroshard {

// Rows of token ids, each of one document, of several packed behind each other, or padded.
struct TokenBatch {
  at::Tensor ids;  // int64, [batch, length]
  // int64, [batch, length]: which document of its row a token belongs to. Tokens see those of their own document only;
  // those with 0 are padding. Undefined: every row is one document.
  at::Tensor documents;
  // int64, [batch, length]: a token's position in its document. Undefined: counted from `documents`.
  at::Tensor positions;
};

// Runs the parts of a model. A part is a module with parameters of its own; sharded ones must be whole meanwhile.
class PartRunner {
 public:
  virtual ~PartRunner() = default;
  virtual at::Tensor run(const torch::nn::Module& part, const std::function<at::Tensor()>& forward) const;
};

// A decoder that predicts each next token. Parameters have the names of the tensors in the directory's files.
class CausalLM : public torch::nn::Module {
 public:
  // [batch, length, vocabulary], in the dtype of the parameters. What stands at padding means nothing.
  // Throws ValueError when a shape or dtype is not as said above, or an id is outside the vocabulary.
  at::Tensor logits(const TokenBatch& batch, const PartRunner& runner = {});

  int64_t vocab_size() const { return vocab_size_; }
  int64_t max_length() const { return max_length_; }
  // Draws the parameters as the architecture does before training. The same for any number of ranks: a parameter's
  // numbers depend on `seed` and its name alone.
  void initialize(uint64_t seed);

 protected:
  CausalLM(int64_t vocab_size, int64_t max_length) : vocab_size_(vocab_size), max_length_(max_length) {}
  // `batch` is complete and checked.
  virtual at::Tensor forward_logits(const TokenBatch& batch, const PartRunner& runner) = 0;
  virtual void initialize_parameter(const std::string& name, at::Tensor& parameter, at::Generator& generator) = 0;

 private:
  int64_t vocab_size_, max_length_;
};

// Values of model_type that make_causal_lm() knows.
std::vector<std::string> causal_lm_types();

// The model that the text of a config.json describes. Its parameters have memory, fp32, and no values yet: they come
// from initialize() or from files. `source` is named in errors. Throws ValueError for an architecture, a field or a
// value that is not supported, naming it and what is.
std::shared_ptr<CausalLM> make_causal_lm(const std::string& config_json, const std::string& source);

// The model of a Hugging Face directory: config.json, and weights in safetensors files of any floating-point dtype,
// which become fp32. Throws ValueError or IoError naming the file, and the tensor when one is missing, has another
// shape, or belongs to no parameter.
std::shared_ptr<CausalLM> load_causal_lm(const std::string& directory);

}  // namespace zeroshard
