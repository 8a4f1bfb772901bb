#pragma once
#include <memory>
#include <string>
#include <vector>

#include "tokenizer/added_tokens.h"
#include "tokenizer/decoder.h"
#include "tokenizer/json_field.h"
#include "tokenizer/normalizer.h"
#include "tokenizer/pre_tokenizer.h"
#include "tokenizer/special_ids.h"
#include "tokenizer/subword_model.h"
#include "tokenizer/token_list.h"
#include "tokenizer/workspace.h"
#include "zeroshard/tokenizer.h"

namespace zeroshard {

// The tokens that begin and end a text.
struct BoundaryTokens {
  std::string bos, eos;  // empty: none
};

// A tokenizer in the format of Hugging Face's `tokenizers`, with a model of type BPE or Unigram.
class JsonTokenizer : public Tokenizer {
 public:
  // `file` has the contents of tokenizer.json. Throws a ValueError that names `name` for contents that are wrong or not
  // supported.
  JsonTokenizer(const JsonField::Json& file, const std::string& name, const BoundaryTokens& boundaries);

  std::vector<int32_t> encode(std::string_view text, bool add_special, bool parse_special) const override;
  std::string decode(const std::vector<int32_t>& ids, bool skip_special) const override;
  int64_t vocab_size() const override { return tokens_.size(); }
  std::optional<int32_t> id_of(std::string_view token) const override { return tokens_.id_of(token); }
  const std::string& token(int32_t id) const override { return tokens_.text(id); }

 private:
  JsonTokenizer(const JsonField& root, const BoundaryTokens& boundaries);
  void read_added_tokens(const JsonField& root);
  void encode_part(std::string_view part, bool at_start, bool parse_special, Workspace& workspace,
                   std::vector<int32_t>& ids) const;

  TokenList tokens_;
  Normalizer normalizer_;
  PreTokenizer pre_tokenizer_;
  SubwordModel model_;
  Decoder decoder_;
  AddedTokens added_, added_normalized_;  // tokens found in the unchanged text, and in the normalized text
  std::vector<uint8_t> special_;          // by id
  std::vector<std::string> bytes_;        // by id: the token's bytes; empty if the decoder needs all tokens at a time
  SpecialIds around_;
  mutable WorkspacePool workspaces_;
};

}  // namespace zeroshard
