#include "launch/line_buffer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/random.h"

namespace zeroshard {
namespace {

using testing::SeededRandom;
using testing::seeds;

std::string prefixed(const std::vector<std::string>& pieces) {
  LineBuffer lines("> ");
  std::string out;
  for (const std::string& piece : pieces) lines.append(piece, out);
  lines.flush(out);
  return out;
}

TEST(LineBuffer, PrefixesEachLineHoweverItArrives) {
  EXPECT_EQ(prefixed({"a\nb", "c\n", "\n", "end"}), "> a\n> bc\n> \n> end\n");
  EXPECT_EQ(prefixed({}), "");
}

TEST(LineBuffer, KeepsIncompleteLinesBack) {
  LineBuffer lines("> ");
  std::string out;
  lines.append("half", out);
  EXPECT_EQ(out, "");
  EXPECT_FALSE(lines.empty());
  lines.append(" and half\n", out);
  EXPECT_EQ(out, "> half and half\n");
  EXPECT_TRUE(lines.empty());
}

TEST(LineBuffer, ShowsTheLastStateOfAProgressBar) {
  EXPECT_EQ(prefixed({"\r 10%", "\r 20%\r", " 30%\n"}), ">  30%\n");
  EXPECT_EQ(prefixed({" 10%\r 20%\r"}), ">  20%\n");
  EXPECT_EQ(prefixed({"dos\r\n"}), "> dos\n");
}

TEST(LineBuffer, CutsEndlessLinesAndLosesNothing) {
  const size_t total = 3 * LineBuffer::kMaxLineBytes + 5;
  const std::string out = prefixed({std::string(total, 'x')});
  EXPECT_EQ(static_cast<size_t>(std::count(out.begin(), out.end(), 'x')), total);
  EXPECT_EQ(std::count(out.begin(), out.end(), '\n'), 4);
}

TEST(LineBuffer, AnyCutOfAnyTextGivesTheSameLines) {
  for (const uint64_t seed : seeds(200)) {
    SeededRandom random(seed);
    std::string text, expected = "> ";
    for (int i = 0; i < 200; ++i) {
      const char c = random() % 5 == 0 ? '\n' : static_cast<char>('a' + random() % 26);
      text += c;
      expected += c;
      if (c == '\n') expected += "> ";
    }
    if (text.back() == '\n') {
      expected.resize(expected.size() - 2);
    } else {
      expected += '\n';
    }
    std::vector<std::string> pieces;
    for (size_t at = 0; at < text.size();) {
      const size_t size = 1 + random() % 40;
      pieces.push_back(text.substr(at, size));
      at += size;
    }
    EXPECT_EQ(prefixed(pieces), expected);
  }
}

TEST(Tail, HasTheLastLines) {
  Tail tail;
  EXPECT_TRUE(tail.lines(3).empty());
  for (int i = 0; i < 20000; ++i) tail.append("line " + std::to_string(i) + "\n");
  tail.append("\r 1%\r 2%\nlast");
  EXPECT_THAT(tail.lines(3), ::testing::ElementsAre("line 19999", " 2%", "last"));
}

TEST(Tail, ShortensLongLines) {
  Tail tail;
  tail.append(std::string(100'000, 'x') + "\nend\n");
  EXPECT_THAT(tail.lines(20), ::testing::ElementsAre(::testing::SizeIs(503), "end"));
}

}  // namespace
}  // namespace zeroshard
