// What the launcher's report says of a rank that failed: the error first, once, and no stack frames.
#include "launch/report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>

namespace zeroshard {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

RankProcess ended(int rank, int code, int signal = 0) {
  RankProcess process;
  process.rank = rank;
  process.exit = ProcessExit{.code = code, .signal = signal, .at_s = 1};
  return process;
}

TEST(LastWords, FramesDoNotPushOutTheMessage) {
  std::vector<std::string> lines = {"loading", "terminate called after throwing an instance of 'c10::Error'",
                                    "  what():  the disk is full", "Exception raised from write at file.cpp:3:"};
  for (int frame = 0; frame < 300; ++frame) lines.push_back("frame #" + std::to_string(frame) + ": f() + 0x1 (in lib)");
  const LastWords words = last_words(lines);
  EXPECT_THAT(words.message, ElementsAre("the disk is full"));
  EXPECT_THAT(words.before, ElementsAre("loading", "terminate called after throwing an instance of 'c10::Error'"));
  EXPECT_FALSE(words.is_last);
}

TEST(LastWords, ATracebackEndsWithTheMessage) {
  const LastWords words = last_words({"[rank1]: Traceback (most recent call last):", "[rank1]:   File \"a.py\", line 1",
                                      "[rank1]: torch.OutOfMemoryError: no memory", "[rank1]: for 3 bytes",
                                      "[zeroshard] memory per rank: planned 1 MB"});
  EXPECT_THAT(words.message, ElementsAre("torch.OutOfMemoryError: no memory", "for 3 bytes"));
  EXPECT_THAT(words.before, ElementsAre("Traceback (most recent call last):", "  File \"a.py\", line 1"));
}

// Python writes them below the exception, as they are: they may look like errors.
TEST(LastWords, NotesStayWithTheirException) {
  const std::vector<std::string> lines = {"Traceback (most recent call last):",
                                          "  File \"a.py\", line 1",
                                          "KeyError: 'x'",
                                          "The above exception was the direct cause of the following exception:",
                                          "Traceback (most recent call last):",
                                          "  File \"a.py\", line 2",
                                          "RuntimeError: it went wrong",
                                          "in layer 3, because of this",
                                          "ValueError: is what a value of 3 would be"};
  const LastWords words = last_words(lines);
  EXPECT_THAT(words.message, ElementsAre("RuntimeError: it went wrong", "in layer 3, because of this",
                                         "ValueError: is what a value of 3 would be"));
  EXPECT_THAT(words.before, ElementsAreArray(lines.begin(), lines.end() - 3));
  std::vector<std::string> native = lines;  // another thread's, at the end of the process
  native.insert(native.end(), {"terminate called after throwing an instance of 'c10::Error'", "  what():  no disk"});
  EXPECT_THAT(last_words(native).message, ElementsAre("no disk"));
}

// A script logs an exception and raises it again.
TEST(LastWords, ATracebackIsToldOnce) {
  const std::vector<std::string> traceback = {"Traceback (most recent call last):", "  File \"a.py\", line 1",
                                              "ValueError: bad"};
  std::vector<std::string> lines = {"step 1"};
  for (const char* between : {"it failed", "again", ""}) {
    lines.insert(lines.end(), traceback.begin(), traceback.end());
    lines.emplace_back(between);
  }
  EXPECT_THAT(last_words(lines).message, ElementsAre("ValueError: bad"));
  EXPECT_THAT(last_words(lines).before, ElementsAre("step 1", "it failed", "again", traceback[0], traceback[1]));
  EXPECT_THAT(last_words({traceback[0], traceback[1]}).message, ElementsAre(traceback[1]));  // killed meanwhile
}

TEST(LastWords, OtherProgramsHaveALastLine) {
  EXPECT_THAT(last_words({"one", "two"}).message, ElementsAre("two"));
  EXPECT_TRUE(last_words({"one", "two"}).is_last);
  EXPECT_THAT(last_words({"zeroshard: a.json: 2 unknown keys;", "  a = 1", "  b = 2"}).message,
              ElementsAre("zeroshard: a.json: 2 unknown keys;", "  a = 1", "  b = 2"));
  EXPECT_THAT(last_words({}).message, IsEmpty());
  EXPECT_THAT(last_words({"", "frame #0: f()", "[zeroshard] x"}).message, IsEmpty());
  EXPECT_THAT(last_words({"[rank]: x", "[rank1]"}).message, ElementsAre("[rank1]"));
}

TEST(LastWords, WarningsOfTorchAreNoReason) {
  const std::string warning = "[W1127 19:00:48.356545006 socket.cpp:207] [c10d] The hostname cannot be retrieved.";
  EXPECT_THAT(last_words({warning}).message, IsEmpty());
  EXPECT_THAT(last_words({"no space left", "[rank1]: " + warning}).message, ElementsAre("no space left"));
  EXPECT_THAT(last_words({"[E1127 19:00:48.3 x.cpp:2] lost"}).message, ElementsAre("[E1127 19:00:48.3 x.cpp:2] lost"));
}

TEST(Report, ARankThatWasAskedToStopHasNotFailed) {
  EXPECT_THAT(failure_report(ended(1, 128 + SIGTERM), {}, {}, {{"a warning"}, {}}),
              AllOf(StartsWith("job stopped: rank 1 "), Not(HasSubstr("a warning"))));
  EXPECT_THAT(failure_report(ended(1, 0, SIGTERM), {}, {}, {}), StartsWith("job failed: rank 1 "));
}

TEST(Report, NothingIsToldTwice) {
  const std::vector<LaterFailure> later = {{ended(0, 1), "CommError: rank 1 left"},
                                           {ended(2, 1), "CommError: rank 1 left"},
                                           {ended(3, 1), "ValueError: bad"}};
  const std::string report = failure_report(ended(1, 7), 5, later, {{"ValueError: bad"}, {"Traceback", "  line 3"}});
  EXPECT_THAT(report, HasSubstr("after 1.0 s, last step 5\n  the end of its stderr:\n    Traceback\n      line 3\n  "
                                "ValueError: bad\n  later: rank 0 "));
  for (const std::string once : {"ValueError: bad", "CommError: rank 1 left"})
    EXPECT_EQ(report.find(once), report.rfind(once)) << report;
  EXPECT_THAT(failure_report(ended(1, 7), {}, {}, {}), Not(HasSubstr("stderr")));
  const std::string same =
      failure_report(ended(1, 7), {}, {{ended(0, 1), "E: x"}}, {{"E: x [reported by rank 0]"}, {}});
  EXPECT_EQ(same.find("E: x"), same.rfind("E: x")) << same;
}

}  // namespace
}  // namespace zeroshard
