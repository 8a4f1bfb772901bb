// When a job counts as hung: find_hang() alone. hang_watch_test.cpp has real ranks.
#include "launch/hang.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>

#include "launch/process_state.h"

namespace zeroshard {
namespace {

using Activity = HeartbeatState::Activity;
using ::testing::HasSubstr;

constexpr int64_t kSecond = 1'000'000'000;
constexpr int64_t kNow = 1000 * kSecond;

// A rank that has reported `step`, its last progress so many seconds ago.
WatchedRank beating(int64_t step, int64_t silent_s) {
  WatchedRank rank;
  rank.process.pid = ::getpid();
  rank.heart.activity = Activity::kBeating;
  rank.heart.step = step;
  rank.heart.progress_ns = kNow - silent_s * kSecond;
  return rank;
}

WatchedRank waiting(int64_t step, int64_t waiting_s, int64_t silent_s) {
  WatchedRank rank = beating(step, silent_s);
  rank.heart.waiting_since_ns = kNow - waiting_s * kSecond;
  rank.heart.where = "all_gather w";
  return rank;
}

WatchedRank ended(WatchedRank rank) {
  rank.process.exit = ProcessExit{};
  return rank;
}

WatchedRank with(WatchedRank rank, Activity activity) {
  rank.heart.activity = activity;
  return rank;
}

std::optional<size_t> find(const std::vector<WatchedRank>& ranks, int64_t suspended_until_ns = 0) {
  return find_hang(ranks, {.timeout_s = 30, .since_ns = suspended_until_ns, .now_ns = kNow});
}

// A rank that has been waiting so long for so many ranks to come, and one that ended so long ago with `code`.
WatchedRank meeting(int64_t waiting_s, int size = 4) {
  WatchedRank rank = with({}, Activity::kNone);
  rank.heart.meeting_size = size;
  rank.heart.meeting_since_ns = kNow - waiting_s * kSecond;
  return rank;
}

WatchedRank gone(int64_t seconds, int code = 0) {
  WatchedRank rank;
  rank.process.exit = ProcessExit{code, 0, 1000 - static_cast<double>(seconds)};
  return rank;
}

TEST(FindAbsence, ARankThatEndedWhileAnotherWaitsForAll) {
  using Pair = std::pair<size_t, size_t>;
  const auto find = [](const std::vector<WatchedRank>& ranks, int64_t suspended_until_ns = 0) {
    return find_absence(ranks, {.timeout_s = 8, .since_ns = suspended_until_ns, .now_ns = kNow}, /*elapsed_s=*/1000,
                        /*world_size=*/4);
  };
  EXPECT_EQ(find({meeting(8), gone(8)}), (Pair{1, 0}));
  EXPECT_EQ(find({gone(9), beating(3, 1), meeting(100)}), (Pair{0, 2}));
  EXPECT_EQ(find({meeting(7), gone(100)}), std::nullopt);     // it may have met the other
  EXPECT_EQ(find({meeting(100), gone(7)}), std::nullopt);     // just now, too
  EXPECT_EQ(find({meeting(100), gone(9, 1)}), std::nullopt);  // that is a failure, and told as such
  EXPECT_EQ(find({meeting(100), beating(3, 100)}), std::nullopt);
  EXPECT_EQ(find({gone(100), beating(3, 100)}), std::nullopt);  // a script may end when it likes
  EXPECT_EQ(find({gone(100), gone(100)}), std::nullopt);
  EXPECT_EQ(find({ended(meeting(100)), gone(100)}), std::nullopt);
  EXPECT_EQ(find({meeting(100, 2), gone(100), gone(100)}), std::nullopt);  // it waits for another, which may yet come
  EXPECT_EQ(find({meeting(100), gone(100)}, kNow - 7 * kSecond), std::nullopt);  // the job was suspended
}

TEST(FindHang, WhenNoRankMakesProgress) {
  EXPECT_EQ(find({beating(5, 31), beating(5, 29)}), std::nullopt);
  EXPECT_EQ(find({beating(5, 31), beating(4, 30)}), 1);
  EXPECT_EQ(find({waiting(5, 31, 31), waiting(5, 40, 40)}), 1);
}

TEST(FindHang, TheRankThatDoesNotWaitIsTheCause) {
  EXPECT_EQ(find({waiting(5, 31, 31), beating(5, 35), waiting(5, 33, 33)}), 1);
  EXPECT_EQ(find({waiting(4, 31, 31), waiting(5, 31, 31), beating(9, 31)}), 2);
}

TEST(FindHang, WhenOneIsSilentAndAnotherWaits) {
  // Rank 2 polls something, which counts as progress, while rank 0 waits for rank 1.
  EXPECT_EQ(find({waiting(5, 31, 31), beating(5, 32), beating(5, 1)}), 1);
  EXPECT_EQ(find({waiting(5, 2, 2), beating(5, 32), beating(5, 1)}), std::nullopt);   // it may be a long step
  EXPECT_EQ(find({waiting(5, 31, 31), beating(5, 2), beating(5, 1)}), std::nullopt);  // all others work
}

TEST(FindHang, RanksThatHaveNotBegunDoNotCount) {
  const WatchedRank loading = with(beating(0, 100), Activity::kNone);
  EXPECT_EQ(find({loading, loading}), std::nullopt);
  EXPECT_EQ(find({beating(3, 1), loading}), std::nullopt);
  EXPECT_EQ(find({waiting(3, 31, 31), loading}), 1);
}

TEST(FindHang, RanksThatHaveFinishedOrEndedDoNotCount) {
  EXPECT_EQ(find({with(beating(9, 100), Activity::kFinished), beating(9, 1)}), std::nullopt);
  EXPECT_EQ(find({with(beating(9, 100), Activity::kFinished), ended(beating(9, 100))}), std::nullopt);
  EXPECT_EQ(find({ended(beating(1, 100)), beating(9, 1)}), std::nullopt);
  EXPECT_EQ(find({ended(beating(1, 100)), waiting(9, 31, 31), with(beating(8, 50), Activity::kFinished)}), 2);
  EXPECT_EQ(find({}), std::nullopt);
}

TEST(FindHang, TimeSuspendedDoesNotCount) {
  const std::vector<WatchedRank> ranks{waiting(5, 100, 100), beating(5, 100)};
  EXPECT_EQ(find(ranks, kNow - 29 * kSecond), std::nullopt);
  EXPECT_EQ(find(ranks, kNow - 30 * kSecond), 1);
}

TEST(HangReport, HasALinePerRank) {
  const std::vector<WatchedRank> ranks{waiting(41, 31, 31), with(beating(0, 99), Activity::kNone),
                                       ended(beating(40, 50))};
  const std::string text = hang_report(ranks, 1, {.timeout_s = 30, .since_ns = 0, .now_ns = kNow});
  EXPECT_THAT(text, HasSubstr("no progress for 30 s"));
  EXPECT_THAT(text, HasSubstr("step 41, last progress 31.0 s ago; waits in all_gather w for 31.0 s; R (running)"));
  EXPECT_THAT(text, HasSubstr("has not connected; R (running)"));
  EXPECT_THAT(text, HasSubstr("has ended with exit code 0"));
}

TEST(ProcessState, OfThisProcess) {
  EXPECT_THAT(kernel_state(::getpid()), ::testing::StartsWith("R (running)"));
  EXPECT_EQ(kernel_state(0), "gone");
  EXPECT_FALSE(handles_signal(0, SIGUSR2));
  EXPECT_FALSE(handles_signal(::getpid(), SIGUSR2));
  const auto old = ::signal(SIGUSR2, [](int) {});
  EXPECT_TRUE(handles_signal(::getpid(), SIGUSR2));
  ::signal(SIGUSR2, old);
}

}  // namespace
}  // namespace zeroshard
