#include "launch/restart.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>

#include "launch/restart_hosts.h"
#include "support/random.h"

namespace zeroshard {
namespace {

using Kind = JobFailure::Kind;
using ::testing::HasSubstr;
using testing::SeededRandom;
using testing::seeds;

LaunchOptions options(int max_restarts, int min_ranks = 0) {
  LaunchOptions result;
  result.nproc = 4;
  result.max_restarts = max_restarts;
  result.min_ranks = min_ranks;
  return result;
}

JobFailure exit_of(int rank, int code, bool any_step = false, double after_s = 1) {
  return {.kind = Kind::kExit, .rank = rank, .code = code, .any_step = any_step, .after_s = after_s};
}

Attempt first() {
  return {.restarts = 0, .nproc = 4, .last_failure = {}};
}

Attempt after(const JobFailure& failure) {
  return {.restarts = 1, .nproc = 4, .last_failure = failure};
}

TEST(Restart, OnlyWhenAskedFor) {
  const RestartDecision decision = decide_restart(options(0), first(), exit_of(1, 7));
  EXPECT_FALSE(decision.next);
  EXPECT_EQ(decision.text, "");
}

TEST(Restart, SaysWhatHappenedAndWhatFollows) {
  const RestartDecision decision = decide_restart(options(3), first(), exit_of(1, 7));
  ASSERT_TRUE(decision.next);
  EXPECT_EQ(decision.next->restarts, 1);
  EXPECT_EQ(decision.next->nproc, 4);
  EXPECT_EQ(decision.text, "rank 1 ended with exit code 7: restart 1 of 3 begins, with 4 ranks");
  JobFailure killed = exit_of(2, 0);
  killed.signal = SIGKILL;
  EXPECT_THAT(decide_restart(options(3), first(), killed).text, HasSubstr("rank 2 was killed by SIGKILL: restart 1"));
  killed.kind = Kind::kHang;
  EXPECT_THAT(decide_restart(options(3), first(), killed).text, HasSubstr("rank 2 made no progress: restart 1 of 3"));
  killed.kind = Kind::kAbsence;
  EXPECT_THAT(decide_restart(options(3), first(), killed).text,
              HasSubstr("rank 2 ended before the others had met it: restart 1 of 3"));
}

TEST(Restart, ARankThatWasAskedToStopEndsTheJob) {
  for (const int signal : {SIGTERM, SIGINT}) {
    const RestartDecision decision = decide_restart(options(3), first(), exit_of(1, 128 + signal));
    EXPECT_FALSE(decision.next) << signal;
    EXPECT_THAT(decision.text, HasSubstr(std::to_string(128 + signal) + ", as ranks do that a signal has asked"));
  }
  JobFailure killed = exit_of(1, 0);
  killed.signal = SIGTERM;
  EXPECT_TRUE(decide_restart(options(3), first(), killed).next);
  EXPECT_TRUE(decide_restart(options(3), first(), exit_of(1, 128 + SIGKILL)).next);
}

TEST(Restart, TheSameEarlyFailureTwiceIsTheLast) {
  const JobFailure failure = exit_of(1, 7);
  EXPECT_FALSE(decide_restart(options(9), after(failure), failure).next);
  EXPECT_THAT(decide_restart(options(9), after(failure), failure).text, HasSubstr("twice in a row"));
  JobFailure killed = exit_of(1, 7);
  killed.signal = SIGSEGV;
  for (const JobFailure& other : {exit_of(0, 7), exit_of(1, 8), exit_of(1, 7, /*any_step=*/true),
                                  exit_of(1, 7, /*any_step=*/false, /*after_s=*/600), killed}) {
    EXPECT_TRUE(decide_restart(options(9), after(failure), other).next);
    EXPECT_TRUE(decide_restart(options(9), after(other), failure).next);
  }
}

TEST(Restart, FewerRanksWhenOneFailsTwice) {
  const JobFailure failure = exit_of(1, 7, /*any_step=*/true);
  const RestartDecision decision = decide_restart(options(9, /*min_ranks=*/2), after(failure), failure);
  ASSERT_TRUE(decision.next);
  EXPECT_EQ(decision.next->nproc, 3);
  EXPECT_FALSE(decision.next->last_failure);  // with three ranks nothing has failed yet
  EXPECT_THAT(decision.text, HasSubstr("with 3 ranks"));
  EXPECT_EQ(decide_restart(options(9, 2), after(exit_of(0, 7)), failure).next->nproc, 4);
  EXPECT_EQ(decide_restart(options(9), after(failure), failure).next->nproc, 4);
  EXPECT_EQ(decide_restart(options(9, 4), after(failure), failure).next->nproc, 4);
}

TEST(Restart, ANumberOfRanksThatFailsAtOnceIsNotTriedAgain) {
  const Attempt fewer{.restarts = 2, .nproc = 3, .last_failure = {}};
  const RestartDecision decision = decide_restart(options(9, /*min_ranks=*/2), fewer, exit_of(0, 1));
  ASSERT_TRUE(decision.next);
  EXPECT_EQ(decision.next->nproc, 2);
  EXPECT_EQ(decision.text,
            "rank 0 ended with exit code 1 at once with 3 ranks, so there is one rank fewer: restart 3 of "
            "9 begins, with 2 ranks");
  JobFailure killed = exit_of(0, 1);
  killed.signal = SIGKILL;
  for (const JobFailure& other : {exit_of(0, 1, /*any_step=*/true), exit_of(0, 1, /*any_step=*/false, 600), killed})
    EXPECT_EQ(decide_restart(options(9, 2), fewer, other).next->nproc, 3);
  EXPECT_EQ(decide_restart(options(9, 3), fewer, exit_of(0, 1)).next->nproc, 3);
  EXPECT_EQ(decide_restart(options(9, 2), first(), exit_of(0, 1)).next->nproc, 4);
}

TEST(Restart, ARankThatCannotStartIsLeftOut) {
  const JobFailure failure{.kind = Kind::kNoStart, .rank = 3};
  EXPECT_EQ(decide_restart(options(9, /*min_ranks=*/1), first(), failure).next->nproc, 3);
  EXPECT_FALSE(decide_restart(options(9), first(), failure).next);
  EXPECT_FALSE(decide_restart(options(9, 4), first(), failure).next);
  EXPECT_FALSE(decide_restart(options(9, 1), first(), {.kind = Kind::kNoStart, .rank = 0}).next);
}

// Whatever fails: at most max_restarts starts more, never fewer ranks than min_ranks, never more than before.
TEST(Restart, TheBudgetHolds) {
  for (const uint64_t seed : seeds(500)) {
    SeededRandom random(seed);
    const auto below = [&random](unsigned n) { return static_cast<int>(random() % n); };
    const LaunchOptions asked = options(below(6), below(5));
    Attempt attempt = first();
    int starts = 1;
    for (;; ++starts) {
      ASSERT_LE(starts, asked.max_restarts + 1);
      JobFailure failure = exit_of(below(static_cast<unsigned>(attempt.nproc)), below(2), below(2) == 0, below(100));
      failure.kind = static_cast<Kind>(below(3));
      const RestartDecision decision = decide_restart(asked, attempt, failure);
      EXPECT_EQ(decision.text.empty(), asked.max_restarts == 0);
      if (!decision.next) break;
      EXPECT_EQ(decision.next->restarts, attempt.restarts + 1);
      EXPECT_LE(decision.next->nproc, attempt.nproc);
      EXPECT_GE(decision.next->nproc, asked.min_ranks > 0 ? asked.min_ranks : 4);
      attempt = *decision.next;
    }
  }
}

LaunchOptions of_hosts(int max_restarts, int min_ranks = 0) {
  LaunchOptions result = options(max_restarts, min_ranks);
  result.nnodes = 3;
  result.restarts = 0;
  return result;
}

HostsAttempt on_hosts(int restarts = 0, const std::optional<JobEnd>& last = {}) {
  return {.restarts = restarts, .hosts = {"a", "b", "c"}, .ranks = 2, .last = last};
}

JobEnd end_of_job(int code, std::vector<size_t> lost = {}, double after_s = 100) {
  return {.code = code, .has_failed = true, .lost = std::move(lost), .after_s = after_s};
}

TEST(RestartOfHosts, AllHostsStartAgainUnlessSomeAreLost) {
  EXPECT_FALSE(decide_restart(of_hosts(0), on_hosts(), end_of_job(7)).begins);
  EXPECT_FALSE(decide_restart(of_hosts(2), on_hosts(), JobEnd{}).begins);
  const HostsRestart all = decide_restart(of_hosts(2), on_hosts(), end_of_job(7));
  EXPECT_TRUE(all.begins);
  EXPECT_TRUE(all.dropped.empty());
  EXPECT_EQ(all.text, "the job ended with exit code 7: restart 1 of 2 begins, on 3 hosts with 6 ranks");
  const HostsRestart left = decide_restart(of_hosts(2, /*min_ranks=*/2), on_hosts(), end_of_job(1, {0, 1}));
  EXPECT_EQ(left.dropped, (std::vector<size_t>{0, 1}));
  EXPECT_EQ(left.text, "hosts a, b are gone: restart 1 of 2 begins, on 1 host with 2 ranks");
  EXPECT_TRUE(decide_restart(of_hosts(2), on_hosts(), end_of_job(1, {1})).begins);  // the host may be back
}

TEST(RestartOfHosts, StaysDownWithAReason) {
  EXPECT_THAT(decide_restart(of_hosts(2), on_hosts(2), end_of_job(7)).text, HasSubstr("--max-restarts 2 is used up"));
  EXPECT_FALSE(decide_restart(of_hosts(2), on_hosts(2), end_of_job(7)).begins);
  EXPECT_THAT(decide_restart(of_hosts(2), on_hosts(), end_of_job(128 + SIGTERM)).text, HasSubstr("asked to stop"));
  const JobEnd soon = end_of_job(7, {}, 1);
  EXPECT_THAT(decide_restart(of_hosts(9), on_hosts(1, soon), soon).text, HasSubstr("twice in a row"));
  EXPECT_FALSE(decide_restart(of_hosts(9), on_hosts(1, soon), soon).begins);
  for (const JobEnd& other : {end_of_job(8, {}, 1), end_of_job(7)}) {
    EXPECT_TRUE(decide_restart(of_hosts(9), on_hosts(1, soon), other).begins);
    EXPECT_TRUE(decide_restart(of_hosts(9), on_hosts(1, other), soon).begins);
  }
  EXPECT_THAT(decide_restart(of_hosts(9, 2), on_hosts(), end_of_job(2, {}, 1)).text, HasSubstr("wrong options"));
  EXPECT_FALSE(decide_restart(of_hosts(9, 2), on_hosts(), end_of_job(2, {}, 1)).begins);
  EXPECT_TRUE(decide_restart(of_hosts(9, 2), on_hosts(), end_of_job(2)).begins);
  JobEnd absent = end_of_job(1, {2});
  absent.could_not_start = true;
  EXPECT_THAT(decide_restart(of_hosts(9), on_hosts(), absent).text,
              HasSubstr("host c could not be started; --min-ranks allows"));
  EXPECT_FALSE(decide_restart(of_hosts(9), on_hosts(), absent).begins);
  EXPECT_EQ(decide_restart(of_hosts(9, 4), on_hosts(), absent).dropped, std::vector<size_t>{2});
  EXPECT_FALSE(decide_restart(of_hosts(9, 6), on_hosts(), absent).begins);
}

TEST(RestartOfHosts, FewerHostsWhenTheJobFailsTwice) {
  const JobEnd end = end_of_job(7);
  EXPECT_EQ(decide_restart(of_hosts(9, 4), on_hosts(1, end), end).dropped, std::vector<size_t>{2});
  EXPECT_TRUE(decide_restart(of_hosts(9, 6), on_hosts(1, end), end).dropped.empty());
  const JobEnd soon = end_of_job(1, {}, 1);  // as many ranks may not share the batch
  EXPECT_EQ(decide_restart(of_hosts(9, 2), on_hosts(1), soon).dropped, std::vector<size_t>{2});
  EXPECT_TRUE(decide_restart(of_hosts(9, 2), on_hosts(0), soon).dropped.empty());
}

TEST(RestartOfHosts, OneHostIsLeftToItsLauncher) {
  HostsAttempt alone = on_hosts();
  alone.hosts = {"a"};
  EXPECT_FALSE(decide_restart(of_hosts(9, 1), alone, end_of_job(7)).begins);
  EXPECT_EQ(decide_restart(of_hosts(9, 1), alone, end_of_job(7)).text, "");
  EXPECT_EQ(decide_restart(of_hosts(9, 1), alone, end_of_job(1, {0})).text,
            "not started again: host a is gone, and there is no other one");
  LaunchOptions each = of_hosts(9);
  EXPECT_FALSE(decide_restart(each, first(), exit_of(1, 7)).next);  // and several hosts to the command
  each.nnodes = 1;
  EXPECT_TRUE(decide_restart(each, first(), exit_of(1, 7)).next);
}

}  // namespace
}  // namespace zeroshard
