#include "base/shown_text.h"

#include <gtest/gtest.h>

namespace zeroshard {
namespace {

using namespace std::string_literals;

TEST(ShownText, LeavesWhatCanBeShown) {
  EXPECT_EQ(shown_text(""), "");
  EXPECT_EQ(shown_text("zero_optimization.stage"), "zero_optimization.stage");
  EXPECT_EQ(shown_text("gr\u00f6\u00dfe \u4e2d \U0001f642 \u00a0"), "gr\u00f6\u00dfe \u4e2d \U0001f642 \u00a0");
  EXPECT_EQ(shown_text(std::string(80, 'x')), std::string(80, 'x'));
}

TEST(ShownText, ControlCharactersAreWrittenOut) {
  EXPECT_EQ(shown_text("a\x1b[31mb\0c\nd\x7f"s), "a\\x1b[31mb\\x00c\\x0ad\\x7f");
  EXPECT_EQ(shown_text("\u009b31m"), "\\x9b31m");
}

TEST(ShownText, LongTextsLoseTheirMiddle) {
  const std::string text = std::string(1'000'000, 'a') + std::string(1'000'000, 'b');
  EXPECT_EQ(shown_text(text, 12), "aaaaaa...bbb");
  for (size_t shift = 0; shift < 4; ++shift) {  // wherever the cuts are
    std::string wide(shift, '.');
    for (int i = 0; i < 100; ++i) wide += "\U0001f642";
    const std::string cut = shown_text(wide, 40);
    EXPECT_LE(cut.size(), 40u);
    const size_t dots = cut.find("...", shift + 1);
    EXPECT_EQ((dots - shift) % 4, 0u);
    EXPECT_EQ((cut.size() - dots - 3) % 4, 0u);
  }
}

}  // namespace
}  // namespace zeroshard
