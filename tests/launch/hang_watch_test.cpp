// Jobs that hang, with real ranks: this very program, started again to run one of the functions in `rank_programs`.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <thread>

#include "launch/heartbeat.h"
#include "launch/stack_dump.h"
#include "zeroshard/launch.h"

namespace zeroshard {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr const char* kProgram = "ZEROSHARD_TEST_RANK";

int variable(const char* name) {
  return std::atoi(std::getenv(name));
}

[[noreturn]] void pause_for_ever() {
  for (;;) ::pause();
}

// Rank 1 falls silent after step 3; the others wait for it.
void hang() {
  Heartbeat heart = Heartbeat::from_environment();
  for (int step = 1; step <= 3; ++step) heart.beat(step);
  if (variable("RANK") != 1) heart.waiting("all_gather 'layer.3'");
  pause_for_ever();
}

void hang_once() {
  if (variable("ZEROSHARD_RESTART_COUNT") == 0) hang();
  Heartbeat heart = Heartbeat::from_environment();
  heart.beat(4);
}

void hang_without_handler() {
  ::signal(SIGTERM, [](int) {
    [[maybe_unused]] const auto written = ::write(STDOUT_FILENO, "told to end\n", 12);
    ::_exit(0);
  });
  Heartbeat heart = Heartbeat::from_environment();
  heart.beat(1);
  ::signal(stack_dump_signal(), SIG_DFL);
  pause_for_ever();
}

void hang_with_signals_blocked() {
  Heartbeat heart = Heartbeat::from_environment();
  sigset_t all;
  ::sigfillset(&all);
  ::sigdelset(&all, SIGTERM);
  ::sigprocmask(SIG_SETMASK, &all, nullptr);
  heart.beat(1);
  pause_for_ever();
}

// Its second thread waits: both stacks are printed.
void hang_in_a_thread() {
  Heartbeat heart = Heartbeat::from_environment();
  heart.beat(1);
  std::thread thread([&heart] {
    heart.waiting("reduce_scatter 'embed'");
    pause_for_ever();
  });
  thread.join();
}

// Slow steps, but none longer than the timeout; then a long end without an engine.
void slow() {
  Heartbeat heart = Heartbeat::from_environment();
  for (int step = 1; step <= 3; ++step) {
    heart.beat(step);
    heart.waiting("all_reduce");
    std::this_thread::sleep_for(150ms);
    heart.done_waiting();
    std::this_thread::sleep_for(150ms);
  }
  heart.finish();
  std::this_thread::sleep_for(1200ms);
}

const std::map<std::string, void (*)()> rank_programs{{"hang", hang},
                                                      {"hang_once", hang_once},
                                                      {"hang_without_handler", hang_without_handler},
                                                      {"hang_with_signals_blocked", hang_with_signals_blocked},
                                                      {"hang_in_a_thread", hang_in_a_thread},
                                                      {"slow", slow}};

// What a rank is: not a test.
TEST(RankOfHangWatch, DISABLED_Main) {
  const char* name = std::getenv(kProgram);
  if (name != nullptr) rank_programs.at(name)();
}

struct WatchedOutcome {
  int code;
  std::string out, err;
  double seconds;
};

LaunchOptions job(int nproc, const std::string& program, double hang_timeout_s) {
  LaunchOptions options;
  options.nproc = nproc;
  options.argv = {"/usr/bin/env",
                  kProgram + ("=" + program),
                  std::filesystem::read_symlink("/proc/self/exe").string(),
                  "--gtest_filter=RankOfHangWatch.DISABLED_Main",
                  "--gtest_also_run_disabled_tests",
                  "--gtest_brief=1"};
  options.hang_timeout_s = hang_timeout_s;
  options.signal_whole_group = false;
  return options;
}

WatchedOutcome run_watched(const LaunchOptions& options) {
  ::testing::internal::CaptureStdout();
  ::testing::internal::CaptureStderr();
  const auto start = std::chrono::steady_clock::now();
  const int code = launch(options);
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  return {code, ::testing::internal::GetCapturedStdout(), ::testing::internal::GetCapturedStderr(), elapsed.count()};
}

size_t count(const std::string& text, const std::string& what) {
  size_t found = 0;
  for (size_t at = text.find(what); at != text.npos; at = text.find(what, at + 1)) ++found;
  return found;
}

TEST(HangWatch, NamesTheSilentRankAndPrintsAllStacks) {
  const WatchedOutcome outcome = run_watched(job(3, "hang", 0.5));
  EXPECT_EQ(outcome.code, 1);
  EXPECT_THAT(outcome.err, HasSubstr("the job hangs: no progress for 0.5 s (--hang-timeout); most likely because of "
                                     "rank 1\n"));
  EXPECT_EQ(count(outcome.err, "step 3, last progress "), 3);
  EXPECT_EQ(count(outcome.err, "; waits in all_gather 'layer.3' for "), 2);
  EXPECT_EQ(count(outcome.err, "; waits for no rank; S (sleeping)"), 1);
  for (const char* rank : {"[rank 0] ", "[rank 1] ", "[rank 2] "}) {
    EXPECT_THAT(outcome.err, HasSubstr(std::string(rank) + "zeroshard: native stack of thread "));
    EXPECT_GE(count(outcome.err, rank), 5) << "frames of " << rank;
  }
  EXPECT_THAT(outcome.err, HasSubstr("[zeroshard] job failed: the job hangs"));
}

TEST(HangWatch, AJobThatHangsStartsAgain) {
  LaunchOptions options = job(2, "hang_once", 0.4);
  options.max_restarts = 1;
  const WatchedOutcome outcome = run_watched(options);
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("rank 1 made no progress: restart 1 of 1 begins, with 2 ranks"));
}

TEST(HangWatch, SlowStepsAndALongEndAreNoHang) {
  const WatchedOutcome outcome = run_watched(job(2, "slow", 1));
  EXPECT_EQ(outcome.code, 0) << outcome.err;
}

TEST(HangWatch, RanksThatNeverBeatDoNotHang) {
  LaunchOptions options = job(2, "", 0.2);
  options.argv = {"/bin/sleep", "1"};
  EXPECT_EQ(run_watched(options).code, 0);
}

// The signal would kill it, before it could save anything.
TEST(HangWatch, ARankWithoutTheHandlerIsNotAsked) {
  const WatchedOutcome outcome = run_watched(job(1, "hang_without_handler", 0.3));
  EXPECT_EQ(outcome.code, 1);
  EXPECT_THAT(outcome.out, HasSubstr("told to end\n"));
}

TEST(HangWatch, ARankThatDoesNotAnswerIsEndedAnyway) {
  const WatchedOutcome outcome = run_watched(job(1, "hang_with_signals_blocked", 0.3));
  EXPECT_EQ(outcome.code, 1);
  EXPECT_THAT(outcome.err, Not(HasSubstr("native stack")));
  EXPECT_GT(outcome.seconds, 2);
  EXPECT_LT(outcome.seconds, 6);
}

TEST(HangWatch, TheThreadThatWaitsIsAskedToo) {
  const WatchedOutcome outcome = run_watched(job(1, "hang_in_a_thread", 0.3));
  EXPECT_EQ(outcome.code, 1);
  EXPECT_THAT(outcome.err, HasSubstr("waits in reduce_scatter 'embed' for "));
  EXPECT_EQ(count(outcome.err, "zeroshard: native stack of thread "), 2) << outcome.err;
}

// A job suspended for longer than the timeout goes on.
TEST(HangWatch, SuspendedTimeDoesNotCount) {
  const std::string file = ::testing::TempDir() + "suspended_hang";
  const pid_t launcher = ::fork();
  if (launcher == 0) {
    if (std::freopen(file.c_str(), "w", stderr) == nullptr) ::_exit(99);
    ::_exit(launch(job(1, "slow", 1)));
  }
  std::this_thread::sleep_for(500ms);  // in the middle of its steps
  ::kill(launcher, SIGTSTP);
  int status = 0;
  ASSERT_EQ(::waitpid(launcher, &status, WUNTRACED), launcher);
  ASSERT_TRUE(WIFSTOPPED(status));
  std::this_thread::sleep_for(1500ms);  // longer than the timeout
  ::kill(launcher, SIGCONT);
  ASSERT_EQ(::waitpid(launcher, &status, 0), launcher);
  std::ifstream stream(file);
  const std::string text{std::istreambuf_iterator<char>(stream), {}};
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0) << text;
}

}  // namespace
}  // namespace zeroshard
