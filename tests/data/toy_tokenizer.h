#pragma once
#include <algorithm>
#include <string>
#include <vector>

#include "zeroshard/error.h"
#include "zeroshard/tokenizer.h"

namespace zeroshard::testing {

// Bytes, pairs that merge wherever they stand, and special tokens: enough to see where texts are cut.
class ToyTokenizer final : public Tokenizer {
 public:
  ToyTokenizer(std::vector<std::string> specials, std::vector<std::string> merges, bool adds_bos = false)
      : specials_(std::move(specials)), adds_bos_(adds_bos) {
    for (int i = 0; i < 256; ++i) tokens_.emplace_back(1, char(i));
    tokens_.insert(tokens_.end(), merges.begin(), merges.end());
    first_special_ = tokens_.size();
    tokens_.insert(tokens_.end(), specials_.begin(), specials_.end());
    bos_ = id_of("<s>");
    eos_ = id_of("</s>");
    digest_ = "0123456789abcdef";
  }

  std::vector<int32_t> encode(std::string_view text, bool add_special, bool parse_special) const override {
    if (text.find("POISON") != text.npos) throw ValueError("a text that cannot be encoded");
    std::vector<int32_t> ids;
    if (add_special && adds_bos_) ids.push_back(*bos_);
    while (!text.empty()) {
      size_t best = static_cast<unsigned char>(text[0]);
      const size_t end = parse_special ? tokens_.size() : first_special_;
      for (size_t i = 256; i < end; ++i)
        if (text.starts_with(tokens_[i]) && tokens_[i].size() > tokens_[best].size()) best = i;
      ids.push_back(int32_t(best));
      text.remove_prefix(tokens_[best].size());
    }
    return ids;
  }
  std::string decode(const std::vector<int32_t>& ids, bool skip_special) const override {
    std::string text;
    for (const int32_t id : ids)
      if (!skip_special || size_t(id) < first_special_) text += token(id);
    return text;
  }
  int64_t vocab_size() const override { return int64_t(tokens_.size()); }
  std::optional<int32_t> id_of(std::string_view token) const override {
    const auto found = std::find(tokens_.begin() + 256, tokens_.end(), token);
    return found == tokens_.end() ? std::nullopt : std::optional(int32_t(found - tokens_.begin()));
  }
  const std::string& token(int32_t id) const override { return tokens_.at(size_t(id)); }

 private:
  std::vector<std::string> specials_, tokens_;
  bool adds_bos_;
  size_t first_special_ = 0;
};

}  // namespace zeroshard::testing
