#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

// Generates text with a trained model. `zeroshard generate` calls these functions.
namespace zeroshard {

class World;

struct SamplingOptions {
  double temperature = 1;  // 0: always the most likely token
  int64_t top_k = 0;       // choose among this many of the most likely tokens; 0: among all tokens
  double top_p = 1;        // choose among the most likely tokens that together have at least this probability
  uint64_t seed = 0;
};

struct GenerateOptions {
  int64_t max_tokens = 128;   // largest number of tokens after the prompt
  std::vector<int32_t> stop;  // tokens that end the text; they are not returned
  // Only ids below this number are chosen. A caller sets it to the tokenizer's vocabulary size, because a model's
  // vocabulary can be padded. 0: the model's vocabulary size.
  int64_t vocab_size = 0;
  std::vector<int32_t> never;  // ids that are never chosen, because the tokenizer has no token for them
  SamplingOptions sampling;
};

// A model of a Hugging Face directory whose blocks are distributed over the ranks. Each rank has a range of consecutive
// blocks. For each token, one rank after another computes its range. The first rank also computes all that comes before
// the blocks, and the last rank all that comes after them. After the last block of its range, a rank broadcasts one
// vector per token, and the rank with the next range continues with these vectors. No parameters are gathered.
class Generator {
 public:
  // Loads the model to the world's device. `dtype` is the dtype of parameters and arithmetic: F32 or BF16. `world` must
  // outlive the generator. Throws ValueError for another dtype, and the errors of load_causal_lm().
  Generator(const std::string& directory, World& world, const std::string& dtype = "F32");
  ~Generator();

  // Returns the tokens that follow `prompt`, the same on every rank. Collective: every rank must pass the same prompt
  // and options. Calls `on_token` with each token as soon as the token is chosen. Throws ValueError for an empty
  // prompt, an id outside the vocabulary, invalid options, or more tokens than the model has positions. Throws Error if
  // no token can be chosen because weights have inf or NaN.
  std::vector<int32_t> generate(const std::vector<int32_t>& prompt, const GenerateOptions& options,
                                const std::function<void(int32_t)>& on_token = {});

  int64_t max_length() const;
  int64_t parameter_bytes() const;  // bytes on this rank

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace zeroshard
