#pragma once
#include <cstdint>
#include <string_view>
#include <variant>
#include <vector>

#include "tokenizer/bpe.h"
#include "tokenizer/unigram.h"

namespace zeroshard {

// The model that turns a word into ids.
using SubwordModel = std::variant<Bpe, Unigram>;

// The working memory of encode_word(), for one call at a time. Only the member for the type of the model in use
// allocates memory.
struct SubwordScratch {
  Bpe::Scratch bpe;
  Unigram::Scratch unigram;
};

// Appends the ids of `word`.
inline void encode_word(const SubwordModel& model, std::string_view word, SubwordScratch& scratch,
                        std::vector<int32_t>& out) {
  if (const auto* bpe = std::get_if<Bpe>(&model)) {
    bpe->encode(word, scratch.bpe, out);
  } else {
    std::get<Unigram>(model).encode(word, scratch.unigram, out);
  }
}

}  // namespace zeroshard
