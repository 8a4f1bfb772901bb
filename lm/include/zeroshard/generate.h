#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

// Text from a trained model: the functions behind `zeroshard generate`.
namespace zeroshard {

class World;

struct SamplingOptions {
  double temperature = 1;  // 0: always the likeliest token
  int64_t top_k = 0;       // only this many of the likeliest; 0: all
  double top_p = 1;        // only the likeliest tokens that together have this probability
  uint64_t seed = 0;
};

struct GenerateOptions {
  int64_t max_tokens = 128;   // after the prompt
  std::vector<int32_t> stop;  // tokens that end the text; they are not returned
  // Only ids below are chosen: the tokenizer's, where a model's vocabulary is padded. 0: the model's.
  int64_t vocab_size = 0;
  std::vector<int32_t> never;  // nor are these: ids below that are no token's
  SamplingOptions sampling;
};

// A model of a Hugging Face directory whose blocks are distributed over the ranks: each rank computes its own blocks
// and passes on one vector per token. Nothing is gathered. Each method is collective.
class Generator {
 public:
  // On the world's device. `dtype`: F32 or BF16, of parameters and arithmetic. Throws ValueError or IoError like
  // load_causal_lm().
  Generator(const std::string& directory, World& world, const std::string& dtype = "F32");
  ~Generator();

  // The tokens that follow `prompt`; `on_token` is called with each at once. The same on every rank. Throws
  // ValueError for an empty prompt, an id outside the vocabulary, invalid options, or more tokens than the model has
  // positions, and Error when weights with inf or NaN leave nothing to choose by.
  std::vector<int32_t> generate(const std::vector<int32_t>& prompt, const GenerateOptions& options,
                                const std::function<void(int32_t)>& on_token = {});

  int64_t max_length() const;
  int64_t parameter_bytes() const;  // of this rank

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace zeroshard
