#pragma once
#include <memory>
#include <string>
#include <vector>

#include "tokenizer/added_tokens.h"
#include "tokenizer/charsmap.h"
#include "tokenizer/sentencepiece_model.h"
#include "tokenizer/subword_model.h"
#include "tokenizer/token_list.h"
#include "tokenizer/workspace.h"
#include "zeroshard/tokenizer.h"

namespace zeroshard {

// A tokenizer with a SentencePiece model of type BPE or Unigram.
class SentencePieceTokenizer : public Tokenizer {
 public:
  struct Options {
    bool add_bos = true, add_eos = false;  // encode() adds these tokens if the model has them
  };

  // Throws a ValueError that names `name` for unsupported models.
  SentencePieceTokenizer(const SentencePieceModel& model, const std::string& name, Options options);

  std::vector<int32_t> encode(std::string_view text, bool add_special, bool parse_special) const override;
  std::string decode(const std::vector<int32_t>& ids, bool skip_special) const override;
  int64_t vocab_size() const override { return tokens_.size(); }
  std::optional<int32_t> id_of(std::string_view token) const override { return tokens_.id_of(token); }
  const std::string& token(int32_t id) const override { return tokens_.text(id); }

 private:
  using Type = SentencePieceModel::Type;
  void read_pieces(const SentencePieceModel& model, const std::string& name);
  // Normalizes as SentencePiece does. Spaces become U+2581.
  void normalize(std::string_view text, std::string& result) const;
  std::string_view normalize_prefix(std::string_view& text) const;
  void encode_part(std::string_view part, Workspace& workspace, std::vector<int32_t>& ids) const;
  void encode_around_user_defined(std::string_view text, Workspace& workspace, std::vector<int32_t>& ids) const;

  TokenList tokens_;
  std::vector<Type> types_;
  bool dummy_prefix_, removes_extra_spaces_;
  std::string unk_surface_;
  Options options_;
  Charsmap charsmap_;
  PrefixTrie user_defined_;
  AddedTokens control_;
  SubwordModel model_;
  mutable WorkspacePool workspaces_;
};

}  // namespace zeroshard
