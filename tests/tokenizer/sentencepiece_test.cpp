#include <cmath>
#include <cstring>

#include "tokenizer/byte_token.h"
#include "tokenizer/charsmap.h"
#include "tokenizer/sentencepiece_model.h"
#include "tokenizer/sentencepiece_tokenizer.h"
#include "tokenizer/support.h"

namespace zeroshard::testing {
namespace {

using Model = SentencePieceModel;
using Type = Model::Type;

std::string varint(uint64_t value) {
  std::string bytes;
  for (; value >= 0x80; value >>= 7) bytes += static_cast<char>(static_cast<unsigned char>(value | 0x80));
  return bytes + static_cast<char>(value);
}
std::string number(int field, uint64_t value) {
  return varint(static_cast<uint64_t>(field) << 3) + varint(value);
}
std::string text(int field, const std::string& value) {
  return varint((static_cast<uint64_t>(field) << 3) | 2) + varint(value.size()) + value;
}
std::string piece(const std::string& name, float score, Type type = Type::kNormal) {
  std::string bytes(4, '\0');
  std::memcpy(bytes.data(), &score, 4);  // as the wire has it on this machine
  return text(1, text(1, name) + varint((2 << 3) | 5) + bytes + number(3, static_cast<uint64_t>(type)));
}

const std::string kSpace = "\xE2\x96\x81";

std::string pieces() {
  return piece("<unk>", 0, Type::kUnknown) + piece("<s>", 0, Type::kControl) + piece("</s>", 0, Type::kControl) +
         piece(kSpace, -1) + piece("a", -2) + piece("b", -3) + piece(kSpace + "a", -4) + piece("ab", -5) +
         piece("xy", -6) + piece("@@", 0, Type::kUserDefined);
}
std::string model_bytes(const std::string& trainer = "", const std::string& normalizer = "") {
  return pieces() + text(2, number(3, 2) + trainer) + text(3, normalizer);
}
std::unique_ptr<Tokenizer> load(const std::string& bytes, SentencePieceTokenizer::Options options = {}) {
  return std::make_unique<SentencePieceTokenizer>(parse_sentencepiece(bytes, "m.model"), "m.model", options);
}

TEST(SentencePiece, EncodesAndDecodes) {
  const auto tokenizer = load(model_bytes());
  EXPECT_EQ(tokenizer->vocab_size(), 10);
  EXPECT_EQ(tokenizer->bos(), 1);
  EXPECT_EQ(tokenizer->eos(), 2);
  EXPECT_EQ(tokenizer->encode("a ab", false, false), Ids({6, 6, 5}));
  EXPECT_EQ(tokenizer->encode("  b   a ", true, false), Ids({1, 3, 5, 6}));  // extra spaces go
  // Letters that are no pieces join to one that is; alone they are unknown, and a run of them is one token.
  EXPECT_EQ(tokenizer->encode("bxyxxzyb", false, false), Ids({3, 5, 8, 0, 5}));
  EXPECT_EQ(tokenizer->encode("a@@@b", false, false), Ids({6, 9, 0, 5}));
  EXPECT_EQ(tokenizer->encode("", true, true), Ids({1}));
  EXPECT_EQ(tokenizer->decode({1, 6, 3, 7, 0, 2}, true), "a ab \xE2\x81\x87 ");
  EXPECT_EQ(tokenizer->decode({1, 6, 2}, false), "<s> a</s>");
  EXPECT_EQ(tokenizer->token(6), kSpace + "a");
}

TEST(SentencePiece, ControlSymbolsAreFoundOnDemand) {
  const auto tokenizer = load(model_bytes(), {.add_bos = false, .add_eos = true});
  EXPECT_EQ(tokenizer->encode("a</s>b", true, true), Ids({6, 2, 3, 5, 2}));
  EXPECT_EQ(tokenizer->encode("a</s>b", false, false), Ids({6, 0, 5}));
}

TEST(SentencePiece, NormalizerSettings) {
  const auto plain = load(model_bytes("", number(3, 0) + number(4, 0)));
  EXPECT_EQ(plain->encode("a  b ", false, false), Ids({4, 3, 3, 5, 3}));
  EXPECT_EQ(plain->decode({3, 4}, false), " a");
  const auto prefixed = load(model_bytes("", number(4, 0)));
  EXPECT_EQ(prefixed->encode(" a", false, false), Ids({3, 6}));
  EXPECT_EQ(prefixed->decode({3, 6}, false), " a");
}

std::string byte_pieces() {
  std::string bytes;
  for (size_t byte = 0; byte < 256; ++byte) bytes += piece(token_of_byte(byte), 0, Type::kByte);
  return bytes;
}

TEST(SentencePiece, ByteFallback) {
  const auto tokenizer = load(model_bytes(number(35, 1)) + byte_pieces());
  EXPECT_EQ(tokenizer->encode("a\xC3\xA9x", false, false), Ids({6, 10 + 0xC3, 10 + 0xA9, 10 + 'x'}));
  EXPECT_EQ(tokenizer->encode("\xFF", false, false), Ids({3, 10 + 0xEF, 10 + 0xBF, 10 + 0xBD}));
  EXPECT_EQ(tokenizer->decode({6, 10 + 0xC3, 10 + 0xA9, 10 + 0xC3}, false), "a\xC3\xA9\xC3");
}

// Without a type, as SentencePiece's default has it.
std::string unigram_bytes(const std::string& trainer = "", const std::string& normalizer = "") {
  return pieces() + text(2, trainer) + text(3, normalizer);
}

TEST(SentencePiece, UnigramModels) {
  const auto tokenizer = load(unigram_bytes());
  EXPECT_EQ(tokenizer->encode("ab a", true, false), Ids({1, 3, 7, 3, 4}));  // -1 - 2 is better than -4
  EXPECT_EQ(tokenizer->encode("bab", false, false), Ids({3, 5, 7}));        // -5 is as good as -2 - 3, and longer
  EXPECT_EQ(tokenizer->encode("bxyxxzyb", false, false), Ids({3, 5, 8, 0, 5}));
  EXPECT_EQ(tokenizer->encode("a@@@b<s>", false, false), Ids({3, 4, 0, 9, 5, 0}));  // names of others are no pieces
  EXPECT_EQ(tokenizer->encode("a<s>b", false, true), Ids({3, 4, 1, 3, 5}));
  EXPECT_EQ(tokenizer->decode({1, 6, 3, 7, 0, 2}, true), "a ab \xE2\x81\x87 ");
  // UNUSED pieces are decoded, and never found.
  const auto unused = load(unigram_bytes() + piece("bb", 9, Type::kUnused));
  EXPECT_EQ(unused->encode("bb", false, false), Ids({3, 5, 5}));
  EXPECT_EQ(unused->decode({10}, false), "bb");
}

// Their scores grow with their length.
TEST(SentencePiece, UserDefinedPiecesOfUnigramModelsArePartOfTheSum) {
  const auto tokenizer =
      load(unigram_bytes("", number(3, 0)) + piece("zw", -1) + piece("w", -1) + piece("@@z", 0, Type::kUserDefined));
  EXPECT_EQ(tokenizer->encode("@@zw", false, false), Ids({12, 11}));
}

TEST(SentencePiece, UnigramModelsWithByteFallback) {
  const auto tokenizer = load(unigram_bytes(number(35, 1)) + byte_pieces());
  EXPECT_EQ(tokenizer->encode("a\xC3\xA9x", false, false), Ids({3, 4, 10 + 0xC3, 10 + 0xA9, 10 + 'x'}));
  EXPECT_EQ(tokenizer->decode({6, 10 + 0xC3, 10 + 0xA9}, false), "a\xC3\xA9");
}

TEST(SentencePiece, WhatIsNotSupportedInUnigramModelsIsNamed) {
  const std::pair<std::string, const char*> cases[] = {
      {unigram_bytes(number(24, 1)), "treat_whitespace_as_suffix"},
      {unigram_bytes("", number(5, 0)), "escape_whitespaces"},
      {unigram_bytes(number(35, 1)), "has 0 byte pieces, with byte_fallback = true"},
      {unigram_bytes() + piece("<u>", 0, Type::kUnknown), "two unknown pieces"},
      {piece("a", 0), "has no unknown piece"},
      {unigram_bytes() + piece("n", INFINITY), "the score of the piece 'n' is infinite"},
      {unigram_bytes() + piece(std::string(2000, 'n'), 0), "has a piece of 2000 bytes"},
  };
  for (const auto& [bytes, message] : cases) {
    const std::string error = error_of([&, &bytes = bytes] { load(bytes); });
    EXPECT_NE(error.find(message), std::string::npos) << message << ": '" << error << "'";
  }
}

TEST(SentencePiece, WhatIsNotSupportedIsNamed) {
  const std::pair<std::string, const char*> cases[] = {
      {pieces() + text(2, number(3, 3)), "'m.model' is of type word, which is not supported: BPE and unigram are"},
      {pieces() + text(2, number(3, 4)), "is of type char"},
      {pieces() + text(2, number(3, 9)), "the model type is 9"},
      {model_bytes(number(24, 1)), "treat_whitespace_as_suffix"},
      {model_bytes("", number(5, 0)), "escape_whitespaces"},
      {model_bytes(number(35, 1)), "has 0 byte pieces, with byte_fallback = true"},
      {model_bytes() + piece("<0x41>", 0, Type::kByte), "has 1 byte pieces"},
      {model_bytes() + piece("<0x4G>", 0, Type::kByte), "the byte piece '<0x4G>' is wrong"},
      {model_bytes() + piece("u", 0, Type::kUnused), "UNUSED"},
      {model_bytes() + piece("a", 0), "has the piece 'a' twice"},
      {model_bytes() + piece("<u>", 0, Type::kUnknown), "two unknown pieces"},
      {text(2, number(3, 2)), "it has no pieces"},
      {piece("a", 0) + text(2, number(3, 2)), "has no unknown piece"},
      {model_bytes() + piece("", 0), "a piece is empty or not UTF-8"},
      {model_bytes() + piece("\xFF", 0), "a piece is empty or not UTF-8"},
      {model_bytes() + piece("n", NAN), "no number as its score"},
      {model_bytes() + piece(std::string(2000, 'n'), 0), "has a piece of 2000 bytes"},
      {model_bytes("", text(2, "abcdefgh")), "normalization rules"},
      {model_bytes() + text(5, text(2, "x")), "a denormalizer is not supported"},
      {model_bytes() + number(1, 3), "field 1 has wire type 0 instead of 2"},
      {model_bytes() + std::string(1, '\x0B'), "wire type 3 is not supported"},
      {model_bytes() + std::string(11, '\xFF'), "more than ten bytes"},
      {model_bytes() + std::string(1, '\0'), "a field number is wrong"},
  };
  for (const auto& [bytes, message] : cases) {
    const std::string error = error_of([&, &bytes = bytes] { load(bytes); });
    EXPECT_NE(error.find(message), std::string::npos) << message << ": '" << error << "'";
  }
}

TEST(SentencePiece, AModelCutAnywhereIsAnErrorOrASmallerModel) {
  const std::string whole = model_bytes("", text(2, std::string("\x04\0\0\0\0\0\0\0x", 9)));
  int errors = 0;
  for (size_t bytes = 0; bytes < whole.size(); ++bytes)
    errors += error_of([&] { load(whole.substr(0, bytes)); }).empty() ? 0 : 1;
  // What may be absent: pieces behind the unknown one, the trainer's part (then it is a Unigram model), the
  // normalizer's.
  EXPECT_EQ(errors, static_cast<int>(whole.size()) - 11);
}

TEST(SentencePiece, DigestsTellModelsApart) {
  const std::string digest = load(model_bytes())->digest();
  EXPECT_EQ(load(model_bytes(text(44, "unk")))->digest(), digest);  // decodes differently, that is all
  EXPECT_NE(load(model_bytes("", number(3, 0)))->digest(), digest);
  EXPECT_NE(load(unigram_bytes())->digest(), digest);
  EXPECT_NE(load(model_bytes(), {.add_bos = false})->digest(), digest);
  EXPECT_NE(load(model_bytes() + piece("c", -9))->digest(), digest);
  EXPECT_NE(load(model_bytes() + piece("c", -9))->digest(), load(model_bytes() + piece("c", -8))->digest());
}

}  // namespace
}  // namespace zeroshard::testing
