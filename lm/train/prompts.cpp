#include "train/prompts.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace zeroshard {
namespace {

constexpr const char* kNeedsTokenizer = ": train.samples.prompts needs the tokenizer of train.model";

std::unique_ptr<Tokenizer> tokenizer_for_prompts(const TrainOptions& options) {
  try {
    return load_tokenizer(options.model);
  } catch (const IoError& error) {
    throw IoError(concat(error.what(), kNeedsTokenizer));
  } catch (const ValueError& error) {
    throw ValueError(concat(error.what(), kNeedsTokenizer));
  }
}

}  // namespace

Prompts encode_prompts(const TrainOptions& options, const CausalLM& model) {
  Prompts prompts;
  if (options.sample_prompts.empty()) return prompts;
  prompts.tokenizer = tokenizer_for_prompts(options);
  for (const std::string& prompt : options.sample_prompts) {
    std::vector<int32_t> ids = prompts.tokenizer->encode(prompt, /*add_special=*/true, /*parse_special=*/true);
    ZS_CHECK(!ids.empty(), "train.samples.prompts has a prompt without tokens: '", prompt,
             "'. A text needs something to begin with");
    const int32_t greatest = *std::max_element(ids.begin(), ids.end());
    ZS_CHECK(greatest < model.vocab_size(), "train.samples.prompts: the prompt '", prompt, "' has token ", greatest,
             ", which is outside the model's vocabulary of ", model.vocab_size(), ": the tokenizer in '", options.model,
             "' is another model's");
    prompts.ids.push_back(std::move(ids));
  }
  return prompts;
}

}  // namespace zeroshard
