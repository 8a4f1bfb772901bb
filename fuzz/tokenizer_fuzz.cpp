// The first byte chooses: the rest is a tokenizer.json, a SentencePiece model, or text for a small tokenizer. What is
// foreign is refused with ValueError, or a tokenizer that encodes any text; a byte-level one gives every text back.
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>

#include "tokenizer/json_field.h"
#include "tokenizer/sentencepiece_model.h"
#include "tokenizer/sentencepiece_tokenizer.h"
#include "tokenizer/tokenizer_json.h"
#include "tokenizer/utf8.h"
#include "zeroshard/error.h"

namespace {

using zeroshard::JsonTokenizer;
using zeroshard::Tokenizer;

constexpr std::string_view kText = "the <s> caf\xC3\xA9 \xE2\x96\x81 ab  \xFF\xE4\xB8\x80 e\xCC\x81 12 'll\r\n\0x";

// Any tokenizer that was accepted encodes and decodes; all ids are in its vocabulary, which may have a token twice.
void use(const Tokenizer& tokenizer, std::string_view text) {
  for (const bool special : {false, true}) {
    const auto ids = tokenizer.encode(text, special, special);
    for (const int32_t id : ids)
      if (tokenizer.token(tokenizer.id_of(tokenizer.token(id)).value()) != tokenizer.token(id)) std::abort();
    tokenizer.decode(ids, special);
  }
}

void read_json(std::string_view text) {
  use(JsonTokenizer(zeroshard::parse_json(text, "input"), "input", {}), kText);
}

void read_model(std::string_view bytes) {
  use(zeroshard::SentencePieceTokenizer(zeroshard::parse_sentencepiece(bytes, "input"), "input", {}), kText);
}

// All bytes, a few merges, a special token and one that takes spaces.
std::unique_ptr<Tokenizer> make_byte_level() {
  zeroshard::JsonField::Json vocab, merges;
  int shifted = 256;
  for (int byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
    std::string character;
    zeroshard::append_utf8(character, static_cast<char32_t>(printable ? byte : shifted++));
    vocab[character] = byte;
  }
  for (const auto& [left, right] : {std::pair("t", "h"), {"th", "e"}, {"a", "a"}, {"aa", "aa"}}) {
    merges.push_back({left, right});
    vocab[std::string(left).append(right)] = vocab.size();
  }
  const zeroshard::JsonField::Json split = {{"type", "Split"},
                                            {"pattern", {{"Regex", "\\p{L}+|\\p{N}{1,3}|\\s+(?!\\S)|\\s+"}}},
                                            {"behavior", "Isolated"},
                                            {"invert", false}};
  const zeroshard::JsonField::Json bytes = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}};
  const zeroshard::JsonField::Json whole = {
      {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", merges}}},
      {"added_tokens", {{{"id", 300}, {"content", "<s>"}, {"special", true}}}},
      {"pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", {split, bytes}}}},
      {"decoder", bytes}};
  return std::make_unique<JsonTokenizer>(whole, "small", zeroshard::BoundaryTokens{});
}

void encode_text(std::string_view text) {
  static const std::unique_ptr<Tokenizer> tokenizer = make_byte_level();
  for (const bool parse : {false, true}) {
    const std::string back = tokenizer->decode(tokenizer->encode(text, true, parse), false);
    if (back != zeroshard::replace_invalid_utf8(text)) std::abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view rest(reinterpret_cast<const char*>(data) + 1, size - 1);
  try {
    switch (data[0] % 3) {
      case 0:
        read_json(rest);
        break;
      case 1:
        read_model(rest);
        break;
      default:
        encode_text(rest);
    }
  } catch (const zeroshard::ValueError&) {
    if (data[0] % 3 == 2) std::abort();
  }
  return 0;
}
