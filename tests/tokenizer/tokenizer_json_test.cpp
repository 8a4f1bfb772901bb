#include <span>
#include <thread>

#include "base/base64.h"
#include "tokenizer/charsmap.h"
#include "tokenizer/support.h"

namespace zeroshard::testing {
namespace {

std::string error_with(const char* pointer, const Json& value, Json json = small_tokenizer()) {
  json[Json::json_pointer(pointer)] = value;
  return error_of([&] { make(json); });
}

TEST(TokenizerJson, EncodesAndDecodes) {
  const auto tokenizer = make(small_tokenizer());
  EXPECT_EQ(tokenizer->encode("abcab", false, false), Ids({7, 6}));
  EXPECT_EQ(tokenizer->encode("xcccy", false, false), Ids({0, 9, 3, 0}));
  EXPECT_EQ(tokenizer->encode("", true, true), Ids());
  EXPECT_EQ(tokenizer->decode({7, 6, 20}, false), "abc ab <s>");  // without a decoder there are spaces
  EXPECT_EQ(tokenizer->decode({7, 20, 6}, true), "abc ab");
  EXPECT_EQ(tokenizer->vocab_size(), 22);
  EXPECT_EQ(tokenizer->id_of("abc"), 7);
  EXPECT_EQ(tokenizer->id_of("<s>"), 20);
  EXPECT_EQ(tokenizer->id_of("xyz"), std::nullopt);
  EXPECT_EQ(tokenizer->token(21), "dd");
}

TEST(TokenizerJson, IdsOutsideTheVocabularyAreErrors) {
  const auto tokenizer = make(small_tokenizer());
  for (const int32_t id : {-1, 11, 19, 22, INT32_MAX, INT32_MIN}) {  // 11 to 19 are no tokens
    EXPECT_NE(error_of([&] { tokenizer->token(id); }).find("is not in the vocabulary of 22 ids"), std::string::npos);
    EXPECT_NE(error_of([&] { tokenizer->decode({1, id}, true); }), "") << id;
  }
}

TEST(TokenizerJson, SpecialTokensAreFoundOnDemand) {
  const auto tokenizer = make(small_tokenizer());
  EXPECT_EQ(tokenizer->encode("ab<s>dd", false, true), Ids({6, 20, 21}));
  EXPECT_EQ(tokenizer->encode("b<s>d", false, false), Ids({2, 0, 0, 0, 4}));
}

TEST(TokenizerJson, WordsThatAreTokensNeedNoMerges) {
  Json json = small_tokenizer();
  json["model"]["vocab"]["bca"] = 11;
  EXPECT_EQ(make(json)->encode("bca", false, false), Ids({2, 3, 1}));
  json["model"]["ignore_merges"] = true;
  EXPECT_EQ(make(json)->encode("bca", false, false), Ids({11}));
}

// Cutting before U+2581 gives the same and is no guess: a merge across is heeded.
TEST(TokenizerJson, MergesAcrossSpacesAreHeeded) {
  Json json = small_tokenizer();
  const std::string text = "b\u2581a\u2581\u2581ab";
  const Ids apart = make(json)->encode(text, false, false);
  EXPECT_EQ(apart, Ids({2, 8, 5, 5, 6}));
  json["model"]["vocab"]["b\u2581"] = 11;
  json["model"]["merges"].insert(json["model"]["merges"].begin(), "b \u2581");
  EXPECT_EQ(make(json)->encode(text, false, false), Ids({11, 1, 5, 5, 6}));
}

TEST(TokenizerJson, NulsAndIllFormedTextAreText) {
  const auto tokenizer = make(byte_tokenizer({{"a", "b"}}));
  EXPECT_EQ(tokenizer->encode(std::string("a\0b\0", 4), false, false), Ids({'a', 0, 'b', 0}));
  EXPECT_EQ(tokenizer->encode("ab\xFF\xE2\x82", false, false), Ids({256, 0xEF, 0xBF, 0xBD, 0xEF, 0xBF, 0xBD}));
  EXPECT_EQ(tokenizer->decode({256, 0xE2, 0x82}, false), "ab\xE2\x82");
}

TEST(TokenizerJson, LongTextsWithoutASpace) {
  const auto tokenizer = make(byte_tokenizer({{"a", "a"}, {"aa", "aa"}}));
  for (const std::string& unit : {std::string("a"), std::string(" "), std::string("\n"), std::string("\xE4\xB8\x80")}) {
    std::string text;
    while (text.size() < 1'000'000) text += unit;
    EXPECT_EQ(tokenizer->decode(tokenizer->encode(text, true, true), false), text);
  }
}

TEST(TokenizerJson, ManyThreadsEncodeAtOnce) {
  const auto tokenizer = make(byte_tokenizer({{"t", "h"}, {"th", "e"}, {"i", "n"}}));
  const auto text = [](size_t i) { return "the thing in number " + std::to_string(i % 97) + " theta"; };
  std::vector<Ids> wanted;
  for (size_t i = 0; i < 97; ++i) wanted.push_back(tokenizer->encode(text(i), false, true));
  std::vector<std::thread> threads;
  std::vector<int> wrong(4, 0);
  for (size_t t = 0; t < wrong.size(); ++t) {
    threads.emplace_back([&, t] {
      for (size_t i = t; i < 2000; ++i) wrong[t] += tokenizer->encode(text(i), false, true) != wanted[i % 97];
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, std::vector<int>(4, 0));
}

TEST(TokenizerJson, WhatIsNotSupportedIsNamed) {
  const std::pair<std::pair<const char*, Json>, const char*> cases[] = {
      {{"/model/type", "WordPiece"}, "tokenizer.json.model.type = \"WordPiece\" is not supported: of models, BPE and"},
      {{"/model/type", "Unigram"}, "is not supported: it must be an array of tokens and scores"},
      {{"/model/dropout", 0.1}, "tokenizer.json.model.dropout = 0.1"},
      {{"/model/end_of_word_suffix", "</w>"}, "tokenizer.json.model.end_of_word_suffix = \"</w>\""},
      {{"/model/continuing_subword_prefix", "##"}, "continuing_subword_prefix = \"##\""},
      {{"/model/other", 1}, "tokenizer.json.model.other = 1 is not supported"},
      {{"/model/merges/1", "a b c"}, "tokenizer.json.model.merges[1] = \"a b c\" is not supported: a merge has two"},
      {{"/model/merges/0", "a x"}, "must be in the vocabulary"},
      {{"/model/merges/0", 3}, "merges[0] = 3"},
      {{"/model/vocab/a", -1}, "tokenizer.json.model.vocab.a = -1"},
      {{"/model/vocab/a", 1e9}, "vocab.a = 1000000000.0"},
      {{"/model/vocab/a", 18446744073709551615U}, "vocab.a = 18446744073709551615"},
      {{"/model/vocab/a", 2}, "vocab.b = 2 is not supported: it is the id of 'a' too"},
      {{"/model/vocab", Json::array()}, "model.vocab = []"},
      {{"/model/unk_token", "<unk>"}, "unk_token = \"<unk>\" is not supported: it must be in the vocabulary"},
      {{"/model/fuse_unk", "yes"}, "model.fuse_unk must be true or false, not \"yes\""},
      {{"/truncation", {{"max_length", 5}}}, "tokenizer.json.truncation = {\"max_length\":5}"},
      {{"/padding", true}, "tokenizer.json.padding = true"},
      {{"/extra", true}, "tokenizer.json.extra = true"},
      {{"/normalizer", {{"type", "BertNormalizer"}}}, "tokenizer.json.normalizer.type = \"BertNormalizer\""},
      {{"/normalizer", {{"type", "NFC"}, {"x", 1}}}, "tokenizer.json.normalizer.x = 1"},
      {{"/normalizer", {{"type", "Sequence"}, {"normalizers", {{{"type", "ByteLevel"}}}}}},
       "tokenizer.json.normalizer.normalizers[0].type = \"ByteLevel\""},
      {{"/normalizer", {{"type", "Replace"}, {"content", ""}, {"pattern", {{"String", ""}}}}}, "normalizer.pattern"},
      {{"/normalizer", {{"type", "Strip"}, {"strip_left", true}}}, "tokenizer.json.normalizer lacks 'strip_right'"},
      {{"/normalizer", {{"type", "Precompiled"}, {"precompiled_charsmap", "AAA"}}}, "is not supported: not base64: 3"},
      {{"/normalizer", {{"type", "Precompiled"}, {"precompiled_charsmap", "AAAAAAAA"}}}, "rules of 6 bytes"},
      {{"/normalizer", {{"type", "Lowercase"}, {"x", 1}}}, "tokenizer.json.normalizer.x = 1"},
      {{"/pre_tokenizer", {{"type", "BertPreTokenizer"}}}, "tokenizer.json.pre_tokenizer.type = \"BertPreTokenizer\""},
      {{"/pre_tokenizer", {{"type", "Metaspace"}, {"replacement", "__"}}}, "pre_tokenizer.replacement = \"__\""},
      {{"/pre_tokenizer", {{"type", "Metaspace"}, {"replacement", "_"}, {"prepend_scheme", "x"}}}, "prepend_scheme"},
      {{"/pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", {{{"type", "ByteLevel"}}, {{"type", "Digits"}}}}}},
       "pretokenizers[1].type = \"Digits\" is not supported: nothing may follow ByteLevel"},
      {{"/post_processor", {{"type", "Other"}}}, "tokenizer.json.post_processor.type = \"Other\""},
      {{"/post_processor", {{"type", "BertProcessing"}, {"sep", {"</s>", 22}}, {"cls", {"<s>", 20}}}},
       "post_processor.sep[1] must be an integer from 0 to 21, not 22"},
      {{"/decoder", {{"type", "CTC"}}}, "tokenizer.json.decoder.type = \"CTC\""},
      {{"/decoder", {{"type", "Replace"}, {"content", ""}, {"pattern", {{"Regex", "a"}}}}}, "decoder.pattern.Regex"},
      {{"/added_tokens/0/id", 1}, "added_tokens[0] = "},
      {{"/added_tokens/0/content", ""}, "a token must have contents"},
      {{"/added_tokens/0/content", "ab"}, "the vocabulary has this token as 6"},
      {{"/added_tokens/0/mystery", 1}, "added_tokens[0].mystery = 1"},
      {{"/added_tokens/1/id", 20}, "its id is that of '<s>'"},
  };
  for (const auto& [change, message] : cases) {
    const std::string error = error_with(change.first, change.second);
    EXPECT_NE(error.find(message), std::string::npos) << change.first << ": '" << error << "'";
  }
}

TEST(TokenizerJson, EveryFieldOfAnotherTypeIsAnErrorOfItsOwn) {
  for (const Json& tokenizer : {small_tokenizer(), small_unigram()}) {
    const Json whole = tokenizer.flatten();
    for (const auto& [pointer, value] : whole.items()) {
      for (const Json& other : {Json(nullptr), Json(-7), Json("~"), Json::array({1}), Json::object({{"~", 2}})}) {
        if (value == other) continue;
        const std::string error = error_with(pointer.c_str(), other, tokenizer);
        EXPECT_EQ(error.find("json.exception"), std::string::npos) << pointer << " " << other << ": " << error;
      }
    }
  }
}

// A compiled charsmap, with its two rules: A becomes a, AB becomes z.
std::string small_charsmap() {
  constexpr uint32_t kEnds = 1U << 8, kLeaf = 1U << 31;
  std::vector<uint32_t> units(0x301, 0);
  const auto offset = [](uint32_t from, uint32_t to) { return (from ^ to) << 10; };
  units[0] = offset(0, 0x100);
  units[0x100 ^ 'A'] = 'A' | kEnds | offset(0x100 ^ 'A', 0x200);
  units[0x200] = kLeaf | 0;
  units[0x200 ^ 'B'] = 'B' | kEnds | offset(0x200 ^ 'B', 0x300);
  units[0x300] = kLeaf | 2;
  units.insert(units.begin(), static_cast<uint32_t>(units.size() * sizeof units[0]));
  return {std::string(reinterpret_cast<const char*>(units.data()), units.size() * sizeof units[0]) +
          std::string("a\0z\0", 4)};  // as it is on this machine
}

TEST(Charsmap, RulesAreAppliedAsEachLibraryDoes) {
  const Charsmap charsmap(small_charsmap(), "m");
  EXPECT_EQ(charsmap.longest("ABC").bytes, 2U);
  EXPECT_EQ(charsmap.longest("ABC").replacement, "z");
  EXPECT_EQ(charsmap.longest("BA").bytes, 0U);
  EXPECT_EQ(charsmap.apply_to_graphemes("ABCé"), "aBCé");
  // A grapheme becomes what its beginning does; a long one is taken apart.
  EXPECT_EQ(charsmap.apply_to_graphemes("A\u0301A\u0301\u0301\u0301"), "aa\u0301\u0301\u0301");
  EXPECT_EQ(charsmap.apply_to_graphemes(""), "");
}

TEST(TokenizerJson, Normalizers) {
  const auto normalized = [](const Json& normalizer, const std::string& text) {
    Json json = byte_tokenizer();
    json["normalizer"] = normalizer;
    const auto tokenizer = make(json);
    return tokenizer->decode(tokenizer->encode(text, false, false), false);
  };
  const auto named = [](const char* type) { return Json{{"type", type}}; };
  EXPECT_EQ(normalized(named("Lowercase"), "ÀΣ\u0130ǅ1"), "àσi\u0307ǆ1");
  EXPECT_EQ(normalized(named("StripAccents"), "e\u0301é\u093E."), "eé.");
  EXPECT_EQ(normalized(named("Nmt"), std::string("a\0\1\tb\u200Bc\u2581\u008F", 12)), std::string("a\0 b c ", 7));
  const auto strip = [](bool left, bool right) {
    return Json{{"type", "Strip"}, {"strip_left", left}, {"strip_right", right}};
  };
  EXPECT_EQ(normalized(strip(true, false), " \u3000a b\n"), "a b\n");
  EXPECT_EQ(normalized(strip(false, true), " a b\n\u2028"), " a b");
  EXPECT_EQ(normalized(strip(true, true), " \n "), "");
  const std::string bytes = small_charsmap();
  const Json precompiled = {{"type", "Precompiled"},
                            {"precompiled_charsmap", to_base64(std::as_bytes(std::span(bytes)))}};
  EXPECT_EQ(normalized(precompiled, "BAB"), "BaB");
  EXPECT_EQ(normalized({{"type", "Sequence"}, {"normalizers", {precompiled, named("Lowercase")}}}, "BAB"), "bab");
}

TEST(TokenizerJson, UnigramModels) {
  Json json = small_unigram();
  EXPECT_EQ(make(json)->encode("abxyb\u2581aé", false, false), Ids({4, 0, 3, 5, 6}));
  EXPECT_EQ(make(json)->encode("ab</s><x>", false, true), Ids({4, 1, 9}));
  EXPECT_EQ(make(json)->encode("b</s><unk>x", false, false), Ids({3, 1, 0}));  // each name in the vocabulary is a piece
  EXPECT_EQ(make(json)->vocab_size(), 10);
  EXPECT_EQ(make(json)->decode({4, 1, 6}, true), "ab é");
  json["model"]["vocab"].push_back({"ab", -9});  // the last of equal ones counts
  EXPECT_EQ(make(json)->encode("ab", false, false), Ids({2, 3}));
  EXPECT_EQ(make(json)->id_of("ab"), 7);
  json = small_unigram();
  json["model"]["unk_id"] = nullptr;
  EXPECT_EQ(make(json)->encode("ab", false, false), Ids({4}));
  EXPECT_NE(error_of([&] { make(json)->encode("abx", false, false); }).find("the text has 'x'"), std::string::npos);
}

TEST(TokenizerJson, WhatIsNotSupportedInUnigramModelsIsNamed) {
  const std::pair<std::pair<const char*, Json>, const char*> cases[] = {
      {{"/model/vocab", Json::object({{"a", 1}})}, "tokenizer.json.model.vocab = {\"a\":1}"},
      {{"/model/vocab", Json::array()}, "model.vocab = [] is not supported: it must be an array of tokens and scores"},
      {{"/model/vocab/2", {"a", "b"}}, "model.vocab[2] = [\"a\",\"b\"] is not supported: it must be a token"},
      {{"/model/vocab/2", {"a", 1, 2}}, "model.vocab[2]"},
      {{"/model/vocab/2/0", std::string(1025, 'a')}, "a token of at most 1024 bytes and its score"},
      {{"/model/unk_id", 7}, "model.unk_id must be an integer from 0 to 6, not 7"},
      {{"/model/merges", Json::array()}, "model.merges = []"},
      {{"/model/nbest_size", 3}, "model.nbest_size = 3 is not supported: no sampling is"},
      {{"/added_tokens/0/id", 2}, "the vocabulary has this token as 1"},
  };
  for (const auto& [change, message] : cases) {
    const std::string error = error_with(change.first, change.second, small_unigram());
    EXPECT_NE(error.find(message), std::string::npos) << change.first << ": '" << error << "'";
  }
  Json json = small_unigram();
  json["pre_tokenizer"] = {{"type", "ByteLevel"}};
  EXPECT_EQ(error_of([&] { make(json); }), "");
  json["model"]["byte_fallback"] = true;
  EXPECT_NE(error_of([&] { make(json); }).find("model.byte_fallback = true is not supported"), std::string::npos);
}

TEST(TokenizerJson, DigestsTellUnigramModelsApart) {
  const std::string digest = make(small_unigram())->digest();
  EXPECT_EQ(make(small_unigram())->digest(), digest);
  const std::pair<const char*, Json> changes[] = {{"/model/vocab/2/1", -2.25},
                                                  {"/model/vocab/2/0", "c"},
                                                  {"/model/unk_id", 1},
                                                  {"/model/unk_id", nullptr},
                                                  {"/model/byte_fallback", true}};
  for (const auto& [pointer, value] : changes) {
    Json json = small_unigram();
    json[Json::json_pointer(pointer)] = value;
    EXPECT_NE(make(json)->digest(), digest) << pointer;
  }
}

TEST(TokenizerJson, BracketsInsideEachOtherHaveALimit) {
  Json step = {{"type", "NFC"}};
  for (int depth = 0; depth < 9; ++depth) step = {{"type", "Sequence"}, {"normalizers", {step}}};
  EXPECT_NE(error_with("/normalizer", step).find("too many sequences"), std::string::npos);
  const auto error = [](const std::string& text) { return error_of([&] { parse_json(text, "file"); }); };
  EXPECT_NE(error(std::string(1'000'000, '[')).find("more than 64 brackets"), std::string::npos);
  EXPECT_NE(error(std::string(65, '[') + std::string(65, ']')).find("more than 64 brackets"), std::string::npos);
  EXPECT_EQ(error(std::string(64, '[') + std::string(64, ']')), "");
  EXPECT_EQ(error(concat('"', std::string(100, '['), "\\\"", std::string(100, '{'), '"')), "");
}

TEST(TokenizerJson, DigestsTellWhatEncodingDependsOn) {
  const std::string digest = make(small_tokenizer())->digest();
  EXPECT_EQ(digest.size(), 16U);
  EXPECT_EQ(make(small_tokenizer())->digest(), digest);
  Json same = small_tokenizer();
  same["decoder"] = {{"type", "Fuse"}};
  same["model"]["merges"][0] = {"a", "b"};  // the other way to write it
  EXPECT_EQ(make(same)->digest(), digest);
  const std::pair<const char*, Json> changes[] = {{"/model/vocab/cc", 12},
                                                  {"/model/fuse_unk", true},
                                                  {"/model/ignore_merges", true},
                                                  {"/model/byte_fallback", true},
                                                  {"/model/merges/3", "a b"},
                                                  {"/normalizer", {{"type", "NFC"}}},
                                                  {"/pre_tokenizer", {{"type", "Digits"}}},
                                                  {"/added_tokens/1/lstrip", true}};
  for (const auto& [pointer, value] : changes) {
    Json json = small_tokenizer();
    json[Json::json_pointer(pointer)] = value;
    EXPECT_NE(make(json)->digest(), digest) << pointer;
  }
}

TEST(LoadTokenizer, FindsTheFileAndNamesWhatIsWrong) {
  const TemporaryDirectory directory;
  const auto error = [](const std::string& path) { return error_of([&] { load_tokenizer(path); }); };
  EXPECT_NE(error(directory.path() + "/none").find("there is no '"), std::string::npos);
  EXPECT_NE(error(directory.path()).find("has no tokenizer.json and 0 SentencePiece models"), std::string::npos);
  const std::string file = directory.put("tokenizer.json", "{\"model\": ");
  EXPECT_NE(error(directory.path()).find("tokenizer.json' is not JSON"), std::string::npos);
  directory.put("tokenizer.json", "[]");
  EXPECT_NE(error(file).find("must be an object"), std::string::npos);
  directory.put("tokenizer.json", small_tokenizer().dump());
  directory.put("special_tokens_map.json", R"({"bos_token": {"content": "<s>"}, "eos_token": "dd"})");
  EXPECT_EQ(load_tokenizer(directory.path())->bos(), 20);
  EXPECT_EQ(load_tokenizer(file)->eos(), 21);
  directory.put("tokenizer_config.json", R"({"bos_token": 3})");
  EXPECT_NE(error(file).find("bos_token must be a string, not 3"), std::string::npos);
}

}  // namespace
}  // namespace zeroshard::testing
