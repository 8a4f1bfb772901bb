#include <gtest/gtest.h>

#include "tokenizer/unicode_form.h"
#include "tokenizer/utf8.h"

namespace zeroshard {
namespace {

std::string utf8(std::u32string_view codes) {
  std::string text;
  for (const char32_t code : codes) append_utf8(text, code);
  return text;
}

TEST(Utf8, EveryCharacterComesBack) {
  for (char32_t code = 0; code < 0x110000; ++code) {
    if (code >= 0xD800 && code < 0xE000) continue;
    const std::string text = utf8({&code, 1});
    const CodePoint found = decode_utf8(text);
    ASSERT_TRUE(found.valid);
    ASSERT_EQ(found.code, code);
    ASSERT_EQ(found.bytes, text.size());
    ASSERT_EQ(utf8_length(text[0]), text.size());
    ASSERT_TRUE(is_valid_utf8(text));
  }
}

// The examples of the Unicode standard, chapter 3, tables 3-8 to 3-11, and the bounds of what is well formed.
TEST(Utf8, EachMaximalIllFormedPartIsOneReplacement) {
  const std::string r = "\xEF\xBF\xBD";
  const std::pair<std::string, std::string> cases[] = {
      {"\xC0\xAF\xE0\x80\xBF\xF0\x81\x82\x41", r + r + r + r + r + r + r + r + "A"},
      {"\xED\xA0\x80\xED\xBF\xBF\xED\xAF\x41", r + r + r + r + r + r + r + r + "A"},
      {"\xF4\x91\x92\x93\xFF\x41\x80\xBF\x42", r + r + r + r + r + "A" + r + r + "B"},
      {"\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\x41", r + r + r + r + "A"},
      {"a\xE2\x82", "a" + r},
      {"\xF0\x9F\x98", r},
      {"\xC1\xBF\xC2\x80\xF5\x80", r + r + "\xC2\x80" + r + r},
      {"ascii, long enough for words\xFF", "ascii, long enough for words" + r},
      {std::string("\0\x80\0", 3), std::string("\0", 1) + r + std::string("\0", 1)},
  };
  for (const auto& [text, wanted] : cases) {
    EXPECT_FALSE(is_valid_utf8(text));
    EXPECT_EQ(replace_invalid_utf8(text), wanted);
    EXPECT_TRUE(is_valid_utf8(wanted));
  }
}

TEST(UnicodeForm, ComposesAndDecomposes) {
  const std::string text = utf8(U"e\u0301 \u00e9 \ufb01 \uac00 \u1e9b\u0323 \u0344");
  EXPECT_EQ(to_form(text, UnicodeForm::kNfc), utf8(U"\u00e9 \u00e9 \ufb01 \uac00 \u1e9b\u0323 \u0308\u0301"));
  EXPECT_EQ(to_form(text, UnicodeForm::kNfd),
            utf8(U"e\u0301 e\u0301 \ufb01 \u1100\u1161 \u017f\u0323\u0307 \u0308\u0301"));
  EXPECT_EQ(to_form(text, UnicodeForm::kNfkc), utf8(U"\u00e9 \u00e9 fi \uac00 \u1e69 \u0308\u0301"));
  EXPECT_EQ(to_form(text, UnicodeForm::kNfkd), utf8(U"e\u0301 e\u0301 fi \u1100\u1161 s\u0323\u0307 \u0308\u0301"));
}

// Whatever is passed over stays as it is, alone and between characters that compose with many.
TEST(UnicodeForm, WhatIsSurelyInFormIsInForm) {
  int sure = 0;
  for (char32_t code = 0; code < 0x110000; ++code) {
    if (code >= 0xD800 && code < 0xE000) continue;
    const std::string text = utf8(std::u32string{U'\u1100', U'e', code, U'\u4E00', code});
    const std::string alone = utf8({&code, 1});
    if (!is_surely_in_form(alone, UnicodeForm::kNfc)) continue;
    ++sure;
    ASSERT_EQ(to_form(alone, UnicodeForm::kNfc), alone) << std::hex << uint32_t{code};
    ASSERT_EQ(to_form(text, UnicodeForm::kNfc), text) << std::hex << uint32_t{code};
  }
  EXPECT_GT(sure, 30000);
  EXPECT_FALSE(is_surely_in_form("e\xCC\x81", UnicodeForm::kNfc));
  EXPECT_FALSE(is_surely_in_form("\xC3\xA9", UnicodeForm::kNfd));
}

// A sort that takes quadratic time would need minutes.
TEST(UnicodeForm, ALongRunOfMarksIsSorted) {
  std::u32string marks = U"a", sorted;
  constexpr int kHalf = 200'000;
  for (int i = 0; i < kHalf; ++i) marks += U"\u0301\u0323";
  sorted += U'\u1ea1';  // a with the first dot below
  for (int i = 1; i < kHalf; ++i) sorted += U'\u0323';
  for (int i = 0; i < kHalf; ++i) sorted += U'\u0301';
  EXPECT_EQ(to_form(utf8(marks), UnicodeForm::kNfc), utf8(sorted));
}

TEST(Utf8, GraphemesAreWhatReadersTakeForCharacters) {
  const std::pair<std::u32string, size_t> cases[] = {{U"ab", 1},
                                                     {U"\r\nb", 2},
                                                     {U"\n\r", 1},
                                                     {U"a\u0301\u0302b", 5},
                                                     {U"\u00e9a", 2},
                                                     {U"\U0001F1E6\U0001F1E7\U0001F1E8", 8},
                                                     {U"\U0001F44D\U0001F3FDx", 8},
                                                     {U"\u1100\u1161", 6},
                                                     {U"\u4e00\u4e00", 3},
                                                     {U"a", 1},
                                                     {U"\u0301", 2}};
  for (const auto& [text, bytes] : cases) EXPECT_EQ(grapheme_length(utf8(text)), bytes) << utf8(text);
}

TEST(Properties, SpacesAndWords) {
  for (const char32_t code : {U' ', U'\t', U'\r', U'\u0085', U'\u00a0', U'\u2028', U'\u3000'})
    EXPECT_TRUE(is_white_space(code)) << uint32_t{code};
  for (const char32_t code : {U'a', U'\u180e', U'\u200b', U'\ufeff', U'\0'})
    EXPECT_FALSE(is_white_space(code)) << uint32_t{code};
  for (const char32_t code : {U'a', U'_', U'9', U'\u0301', U'\u4e00', U'\u200d', U'\u24b6', U'\u2163'})
    EXPECT_TRUE(is_word(code)) << uint32_t{code};
  for (const char32_t code : {U' ', U'-', U'<', U'\u00b2', U'\u2603'}) EXPECT_FALSE(is_word(code)) << uint32_t{code};
}

}  // namespace
}  // namespace zeroshard
