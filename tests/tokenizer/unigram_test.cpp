#include "tokenizer/unigram.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "support/random.h"
#include "tokenizer/support.h"

namespace zeroshard::testing {
namespace {

using Flavor = Unigram::Flavor;
using Pieces = std::vector<Unigram::Piece>;

Unigram::Parts parts_of(Pieces pieces, Flavor flavor = Flavor::kHuggingFace) {
  Unigram::Parts parts;
  parts.pieces = std::move(pieces);
  parts.unknown_id = 0;
  parts.unknown_score = -30;
  parts.flavor = flavor;
  return parts;
}

Ids encode(const Unigram& model, std::string_view text) {
  Unigram::Scratch scratch;
  Ids ids, again;
  model.encode(text, scratch, ids);
  model.encode(text, scratch, again);
  EXPECT_EQ(ids, again) << "cached: " << text;
  return ids;
}
Ids encode(Unigram::Parts parts, std::string_view text) {
  return encode(Unigram(std::move(parts)), text);
}

// The definition: of all ways to cut `text`, the highest sum.
double best_sum(const Pieces& pieces, std::string_view text) {
  double best = text.empty() ? 0 : -1e9;
  for (const Unigram::Piece& piece : pieces) {
    if (!piece.text.empty() && text.starts_with(piece.text))
      best = std::max(best, piece.score + best_sum(pieces, text.substr(piece.text.size())));
  }
  return best;
}

TEST(Unigram, FindsTheBestOfAllWaysToCut) {
  for (const uint64_t seed : seeds(200)) {
    SeededRandom random(seed);
    const auto score = [&] { return static_cast<double>(random() % 72) / 8 - 8; };  // of which sums are exact
    const auto text_of = [&](size_t length) {
      std::string text(length, 'a');
      for (char& c : text) c = static_cast<char>('a' + random() % 3);
      return text;
    };
    std::map<std::string, double> scores = {{"a", score()}, {"b", score()}, {"c", score()}};
    for (int i = 0; i < 12; ++i) scores.emplace(text_of(2 + random() % 3), score());
    Pieces pieces = {{"", 0}};
    for (const auto& [text, value] : scores) pieces.push_back({text, value});
    const Unigram model(parts_of(pieces));
    for (int round = 0; round < 10; ++round) {
      const std::string text = text_of(1 + random() % 11);
      double sum = 0;
      std::string joined;
      for (const int32_t id : encode(model, text)) {
        sum += pieces.at(static_cast<size_t>(id)).score;
        joined += pieces.at(static_cast<size_t>(id)).text;
      }
      EXPECT_EQ(joined, text);
      EXPECT_EQ(sum, best_sum(pieces, text)) << text;
    }
  }
}

TEST(Unigram, OfEqualSumsTheLastPieceIsTheLongest) {
  EXPECT_EQ(encode(parts_of({{"", 0}, {"a", -1}, {"aa", -2}}), "aaa"), Ids({1, 2}));
}

// Sums of SentencePiece are floats, here 1/128 apart, until they are worse than 100,000 and start again.
TEST(Unigram, SumsAreRoundedAsEachLibraryDoes) {
  const auto model = [](double first, Flavor flavor) {
    return parts_of({{"", 0}, {"a", first}, {"b", -1}, {"cd", -2}, {"bc", -1.5}, {"d", -1.499F}, {"c", -9}}, flavor);
  };
  EXPECT_EQ(encode(model(-90000, Flavor::kHuggingFace), "abcd"), Ids({1, 4, 5}));
  EXPECT_EQ(encode(model(-90000, Flavor::kSentencePiece), "abcd"), Ids({1, 2, 3}));
  EXPECT_EQ(encode(model(-200000, Flavor::kSentencePiece), "abcd"), Ids({1, 4, 5}));
}

TEST(Unigram, UnknownCharactersInARowAreOneId) {
  for (const Flavor flavor : {Flavor::kSentencePiece, Flavor::kHuggingFace}) {
    const Unigram model(parts_of({{"", 0}, {"a", -1}, {"b", -2}, {"ab", -2}, {"xb", -3}}, flavor));
    EXPECT_EQ(encode(model,
                     "xx\xC3\xA9"
                     "ab\xF0\x9F\x91\x8D"),
              Ids({0, 3, 0}));
    EXPECT_EQ(encode(model, "xxb"), Ids({0, 4}));
    EXPECT_EQ(encode(model, ""), Ids());
    // A run may be longer than what is decided at once.
    EXPECT_EQ(encode(model, std::string(100, 'x')), Ids({0}));
  }
}

TEST(Unigram, UnknownCharactersBecomeBytesWhenTheyHaveIds) {
  for (const Flavor flavor : {Flavor::kSentencePiece, Flavor::kHuggingFace}) {
    Unigram::Parts parts = parts_of({{"", 0}, {"a", -1}}, flavor);
    for (const int byte : {0xC3, 0xA9, int{'x'}}) parts.bytes[static_cast<size_t>(byte)] = 1000 + byte;
    const Unigram model(parts);
    EXPECT_EQ(encode(model, "a\xC3\xA9xa"), Ids({1, 1000 + 0xC3, 1000 + 0xA9, 1000 + 'x', 1}));
    EXPECT_EQ(encode(model, "xya"), Ids({0, 1}));  // one has none
  }
}

// Hugging Face looks up the text of each piece once more; its unknown token is a piece too.
TEST(Unigram, ARunOfUnknownCharactersMayBeAToken) {
  const Pieces pieces = {{"<u>", 0}, {"a", -1}, {"xy", -90}};
  EXPECT_EQ(encode(parts_of(pieces), "axya"), Ids({1, 2, 1}));
  EXPECT_EQ(encode(parts_of(pieces, Flavor::kSentencePiece), "axya"), Ids({1, 0, 1}));
  EXPECT_EQ(encode(parts_of(pieces), "a<u>xy<u>a"), Ids({1, 0, 1}));
}

TEST(Unigram, WithoutAnUnknownIdUnknownCharactersAreErrors) {
  Unigram::Parts parts = parts_of({{"a", -1}, {"xb", -1}});
  parts.unknown_id = -1;
  const Unigram model(parts);
  EXPECT_EQ(encode(model, "a"), Ids({0}));
  Unigram::Scratch scratch;
  Ids ids;
  const std::string error = error_of([&] { model.encode("a\xC3\xA9", scratch, ids); });
  EXPECT_NE(error.find("the text has '\xC3\xA9', for which the vocabulary has no token"), std::string::npos) << error;
}

TEST(Unigram, UnitsMayBeBytes) {
  Unigram::Parts parts = parts_of({{"", 0}, {"\xC3", -1}, {"a\xA9", -1}});
  parts.byte_units = true;
  EXPECT_EQ(encode(parts,
                   "\xC3"
                   "a\xA9\xC3\xC3z"),
            Ids({1, 2, 1, 1, 0}));
}

Pieces runs_of_a(size_t longest) {
  Pieces pieces = {{"", 0}};
  for (size_t length = 1; length <= longest; ++length)
    pieces.push_back({std::string(length, 'a'), -1 - 0.001 * static_cast<double>(length)});
  return pieces;
}

TEST(Unigram, ALongTextTakesNoQuadraticTimeAndLeavesNoLargeScratch) {
  const Unigram model(parts_of(runs_of_a(16)));
  Unigram::Scratch scratch;
  Ids ids;
  model.encode(std::string(1'600'000, 'a'), scratch, ids);
  EXPECT_EQ(ids, Ids(100'000, 16));
  EXPECT_LE(scratch.nodes.capacity() * sizeof(Unigram::Node), size_t{16} << 20);
}

TEST(Unigram, OrdinaryTextIsDecidedWordByWord) {
  Pieces pieces = runs_of_a(5);
  pieces.push_back({" a", -1});
  const Unigram model(parts_of(pieces));
  Unigram::Scratch scratch;
  Ids ids;
  std::string text;
  while (text.size() < 100'000) text += " aaaaaaaa";
  model.encode(text, scratch, ids);
  EXPECT_EQ(ids.size(), text.size() / 9 * 3);
  EXPECT_LT(scratch.nodes.capacity(), 100U);
}

TEST(Unigram, PiecesHaveALimit) {
  EXPECT_EQ(encode(parts_of({{"", 0}, {std::string(1024, 'a'), -1}}), std::string(1024, 'a')), Ids({1}));
  const auto error = [](const Pieces& pieces) { return error_of([&] { const Unigram model(parts_of(pieces)); }); };
  EXPECT_NE(error({{std::string(1025, 'a'), -1}}).find("a piece has 1025 bytes"), std::string::npos);
}

TEST(PieceTrie, FindsAllPrefixes) {
  SeededRandom random(1);
  std::map<std::string, int32_t> wanted;
  std::vector<std::string> texts;
  for (int i = 0; i < 3000; ++i) {
    std::string text(1 + random() % 6, '\0');
    for (char& c : text) c = static_cast<char>(random() % 2 == 0 ? random() % 4 : 250 + random() % 6);
    texts.push_back(text);
  }
  std::vector<PieceTrie::Entry> entries = {{"", 7}};
  for (const std::string& text : texts) {
    const auto value = static_cast<int32_t>(entries.size());
    entries.emplace_back(text, value);
    wanted[text] = value;  // the last of equal ones
  }
  const PieceTrie trie(entries);
  for (const std::string& text : texts) {
    EXPECT_EQ(trie.find(text), wanted.at(text));
    std::vector<std::pair<int32_t, size_t>> found, all;
    trie.each_prefix(text, [&](int32_t value, size_t bytes) { found.emplace_back(value, bytes); });
    for (size_t bytes = 1; bytes <= text.size(); ++bytes)
      if (const auto it = wanted.find(text.substr(0, bytes)); it != wanted.end()) all.emplace_back(it->second, bytes);
    EXPECT_EQ(found, all);
  }
  EXPECT_EQ(trie.find(""), -1);
  EXPECT_EQ(trie.find("none"), -1);
  EXPECT_EQ(PieceTrie({}).find("a"), -1);
}

TEST(PieceTrie, HasALimitOfBytes) {
  const std::string text(size_t{1} << 20, 'x');
  const std::string error = error_of([&] { PieceTrie(std::vector<PieceTrie::Entry>(65, {text, 1})); });
  EXPECT_NE(error.find("bytes of text: at most 67108864"), std::string::npos) << error;
}

}  // namespace
}  // namespace zeroshard::testing
