#include "tokenizer/sentencepiece_tokenizer.h"

#include <bit>

#include "base/check.h"
#include "tokenizer/byte_token.h"
#include "tokenizer/normalizer.h"
#include "tokenizer/sentencepiece_bpe.h"
#include "tokenizer/sentencepiece_unigram.h"
#include "tokenizer/utf8.h"

namespace zeroshard {
namespace {

constexpr std::string_view kSpaceSymbol = "\xE2\x96\x81";

SubwordModel subword_model_of(const SentencePieceModel& model, const std::string& name) {
  static constexpr const char* kKinds[] = {"", "unigram", "BPE", "word", "char"};
  if (model.kind == SentencePieceModel::Kind::kUnigram) return unigram_of(model, name);
  ZS_CHECK(model.kind == SentencePieceModel::Kind::kBpe, "'", name, "' is of type ",
           kKinds[static_cast<int>(model.kind)], ", which is not supported: BPE and unigram are");
  return bpe_of(model, name);
}

std::string digest_of(const SentencePieceModel& model, SentencePieceTokenizer::Options options) {
  TokenizerDigest digest;
  for (const SentencePieceModel::Piece& piece : model.pieces) {
    digest.add(piece.text);
    digest.add(static_cast<int64_t>(std::bit_cast<uint32_t>(piece.score)));
    digest.add(static_cast<int64_t>(piece.type));
  }
  digest.add(model.charsmap);
  if (model.kind != SentencePieceModel::Kind::kBpe) digest.add(static_cast<int64_t>(model.kind));
  for (const bool flag : {model.add_dummy_prefix, model.remove_extra_whitespaces, options.add_bos, options.add_eos})
    digest.add(flag);
  return digest.text();
}

}  // namespace

SentencePieceTokenizer::SentencePieceTokenizer(const SentencePieceModel& model, const std::string& name,
                                               Options options)
    : tokens_(static_cast<int64_t>(model.pieces.size())),
      dummy_prefix_(model.add_dummy_prefix),
      removes_extra_spaces_(model.remove_extra_whitespaces),
      unk_surface_(model.unk_surface),
      options_(options),
      charsmap_(model.charsmap, name),
      model_(subword_model_of(model, name)) {
  read_pieces(model, name);
  digest_ = digest_of(model, options);
}

void SentencePieceTokenizer::read_pieces(const SentencePieceModel& model, const std::string& name) {
  for (const SentencePieceModel::Piece& piece : model.pieces) {
    const auto id = static_cast<int32_t>(types_.size());
    ZS_CHECK(!tokens_.id_of(piece.text), "'", name, "' has the piece '", piece.text, "' twice");
    tokens_.set(id, piece.text);
    types_.push_back(piece.type);
    if (piece.type == Type::kUserDefined) user_defined_.insert(piece.text, id);
    if (piece.type != Type::kControl) continue;
    control_.insert(piece.text, {.content = piece.text, .id = id, .special = true});
    if (piece.text == model.bos_piece) bos_ = id;
    if (piece.text == model.eos_piece) eos_ = id;
  }
}

// Removes one part from the front of `text`: the longest user-defined piece, else the longest text that has a rule,
// else one character. Returns the replacement of the rule, or in the other cases the part itself.
std::string_view SentencePieceTokenizer::normalize_prefix(std::string_view& text) const {
  const auto take = [&](size_t bytes) {
    const std::string_view taken = text.substr(0, bytes);
    text.remove_prefix(taken.size());
    return taken;
  };
  if (const auto found = user_defined_.longest(text)) return take(found->bytes);
  const Charsmap::Rule rule = charsmap_.longest(text);
  if (rule.bytes == 0) return take(utf8_length(text[0]));
  take(rule.bytes);
  return rule.replacement;
}

void SentencePieceTokenizer::normalize(std::string_view text, std::string& result) const {
  result.clear();
  const auto put = [&](std::string_view part) {
    for (const char c : part) c == ' ' ? result += kSpaceSymbol : result += c;
  };
  if (removes_extra_spaces_) {
    for (std::string_view rest = text; !rest.empty() && normalize_prefix(rest) == " ";) text = rest;
  }
  if (text.empty()) return;
  if (dummy_prefix_) result += kSpaceSymbol;
  bool after_space = removes_extra_spaces_;
  while (!text.empty()) {
    std::string_view part = normalize_prefix(text);
    while (after_space && part.starts_with(' ')) part.remove_prefix(1);
    put(part);
    if (!part.empty()) after_space = removes_extra_spaces_ && part.ends_with(' ');
  }
  while (removes_extra_spaces_ && result.ends_with(kSpaceSymbol)) result.resize(result.size() - kSpaceSymbol.size());
}

void SentencePieceTokenizer::encode_part(std::string_view part, Workspace& workspace, std::vector<int32_t>& ids) const {
  normalize(part, workspace.normalized);
  if (std::holds_alternative<Bpe>(model_)) return encode_around_user_defined(workspace.normalized, workspace, ids);
  // Does not cut the text for a Unigram model, which treats user-defined pieces like other pieces, each with a score.
  encode_word(model_, workspace.normalized, workspace.model, ids);
}

void SentencePieceTokenizer::encode_around_user_defined(std::string_view text, Workspace& workspace,
                                                        std::vector<int32_t>& ids) const {
  size_t done = 0;
  const auto encode_until = [&](size_t end) {
    if (done < end) encode_word(model_, text.substr(done, end - done), workspace.model, ids);
  };
  for (size_t at = user_defined_.candidate(text, 0); at < text.size(); at = user_defined_.candidate(text, at)) {
    const auto found = user_defined_.longest(text.substr(at));
    if (!found) {
      ++at;
      continue;
    }
    encode_until(at);
    ids.push_back(found->value);
    done = at += found->bytes;
  }
  encode_until(text.size());
}

std::vector<int32_t> SentencePieceTokenizer::encode(std::string_view text, bool add_special, bool parse_special) const {
  const WorkspacePool::Lease lease(workspaces_);
  Workspace& workspace = *lease;
  text = well_formed_utf8(text, workspace.well_formed);
  std::vector<int32_t> ids;
  ids.reserve(text.size() / 3 + 8);
  if (add_special && options_.add_bos && bos_) ids.push_back(*bos_);
  const auto part = [&](size_t begin, size_t end) { encode_part(text.substr(begin, end - begin), workspace, ids); };
  control_.cut(text, parse_special, part, [&](int32_t id) { ids.push_back(id); });
  if (add_special && options_.add_eos && eos_) ids.push_back(*eos_);
  return ids;
}

std::string SentencePieceTokenizer::decode(const std::vector<int32_t>& ids, bool skip_special) const {
  std::string text;
  bool at_start = true, dropped_space = false;
  for (const int32_t id : ids) {
    std::string_view piece = tokens_.text(id);
    const Type type = types_[static_cast<size_t>(id)];
    if (type == Type::kByte) {
      text += static_cast<char>(byte_of_token(piece).value());
      continue;
    }
    if (dropped_space || !text.empty()) at_start = false;
    dropped_space = false;
    if (type == Type::kControl) {
      if (!skip_special) text += piece;
    } else if (type == Type::kUnknown) {
      text += unk_surface_;
    } else {
      if (at_start && (dummy_prefix_ || removes_extra_spaces_) && piece.starts_with(kSpaceSymbol)) {
        piece.remove_prefix(kSpaceSymbol.size());
        // If this is false and `text` is still empty, the next piece counts as the first one again, and loses its
        // space, too.
        dropped_space = !removes_extra_spaces_;
      }
      text += replaced(piece, kSpaceSymbol, " ");
    }
  }
  return text;
}

}  // namespace zeroshard
