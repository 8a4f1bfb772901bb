// launch() with small shell programs. tests/python/launch/test_launcher.py tests the same from outside, with Python
// scripts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>

#include "launch/descendants.h"
#include "launch/environment.h"
#include "zeroshard/error.h"
#include "zeroshard/launch.h"

namespace zeroshard {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

struct Outcome {
  int code;
  std::string out, err;
  double seconds;
};

LaunchOptions shell(int nproc, const std::string& script) {
  LaunchOptions options;
  options.nproc = nproc;
  options.argv = {"/bin/sh", "-c", script};
  options.grace_period_s = 5;
  return options;
}

Outcome run(const LaunchOptions& options) {
  ::testing::internal::CaptureStdout();
  ::testing::internal::CaptureStderr();
  const auto start = std::chrono::steady_clock::now();
  const int code = launch(options);
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  return {code, ::testing::internal::GetCapturedStdout(), ::testing::internal::GetCapturedStderr(), elapsed.count()};
}

TEST(Launch, SetsTheVariablesOfEveryRank) {
  const Outcome outcome = run(shell(2,
                                    "echo $RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE "
                                    "$GROUP_RANK/$GROUP_WORLD_SIZE $MASTER_ADDR $ZEROSHARD_LAUNCHER"));
  EXPECT_EQ(outcome.code, 0);
  EXPECT_THAT(outcome.out, HasSubstr("[rank 0] 0/2 0/2 0/1 127.0.0.1 1\n"));
  EXPECT_THAT(outcome.out, HasSubstr("[rank 1] 1/2 1/2 0/1 127.0.0.1 1\n"));
}

TEST(Launch, SetsTheVariablesOfRanksOfSeveralHosts) {
  LaunchOptions options = shell(2, "");
  options.nnodes = 3;
  options.node_rank = 1;
  options.master_addr = "10.0.0.1";
  const std::vector<std::string> variables =
      environment_of(options, /*local_rank=*/1, {.port = 1234, .interface = "eth1"});
  for (const char* expected :
       {"RANK=3", "WORLD_SIZE=6", "LOCAL_RANK=1", "LOCAL_WORLD_SIZE=2", "GROUP_RANK=1", "GROUP_WORLD_SIZE=3",
        "MASTER_ADDR=10.0.0.1", "MASTER_PORT=1234", "GLOO_SOCKET_IFNAME=eth1"})
    EXPECT_THAT(variables, Contains(expected));
  for (const std::string& variable : variables) EXPECT_FALSE(variable.starts_with("NCCL_SOCKET_IFNAME=")) << variable;
}

TEST(Launch, OneRankHasNoPrefix) {
  const Outcome outcome = run(shell(1, "echo out; echo err >&2"));
  EXPECT_EQ(outcome.out, "out\n");
  EXPECT_EQ(outcome.err, "err\n");
}

TEST(Launch, TheFirstFailureGivesTheCodeAndTheReport) {
  const Outcome outcome = run(shell(3, "echo oops >&2; [ $RANK = 1 ] && exit 7; exec sleep 60"));
  EXPECT_EQ(outcome.code, 7);
  EXPECT_LT(outcome.seconds, 4);
  EXPECT_THAT(outcome.err, HasSubstr("job failed: rank 1 (pid "));
  EXPECT_THAT(outcome.err, HasSubstr("ended with exit code 7 after"));
  EXPECT_THAT(outcome.err, HasSubstr("[zeroshard]   oops\n"));
  EXPECT_THAT(outcome.err, Not(HasSubstr("later:")));
}

// With one rank its lines are right above the report, except when frames came between.
TEST(Launch, TheReportOfOneRankRepeatsNothing) {
  const std::string err = run(shell(1, "echo before >&2; echo 'ValueError: oops' >&2; exit 1")).err;
  EXPECT_EQ(err.find("oops"), err.rfind("oops")) << err;
  EXPECT_EQ(err.find("before"), err.rfind("before")) << err;
  const std::string framed = run(shell(1, "echo '  what():  oops' >&2; echo 'frame #0: f()' >&2; exit 1")).err;
  EXPECT_THAT(framed, HasSubstr("[zeroshard]   oops\n"));
}

TEST(Launch, ADeathBySignalIs128More) {
  const Outcome outcome = run(shell(2, "[ $RANK = 0 ] && kill -SEGV $$; exec sleep 60"));
  EXPECT_EQ(outcome.code, 128 + SIGSEGV);
  EXPECT_THAT(outcome.err, HasSubstr("was killed by SIGSEGV"));
}

// Each rank fails as soon as the one before it has gone: the report must start with the first.
TEST(Launch, TheRootCauseComesFirst) {
  const std::string folder = ::testing::TempDir() + "root_cause";
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  LaunchOptions options = shell(4, R"(
    trap '' TERM
    echo $$ > pid.$RANK.new; mv pid.$RANK.new pid.$RANK
    for r in 0 1 2 3; do while [ ! -e pid.$r ]; do sleep 0.01; done; done
    [ $RANK = 2 ] && exit 42
    while kill -0 $(cat pid.2) 2> /dev/null; do :; done
    echo "lost rank 2" >&2; exit 1)");
  const std::string before = std::filesystem::current_path();
  std::filesystem::current_path(folder);
  const Outcome outcome = run(options);
  std::filesystem::current_path(before);
  EXPECT_EQ(outcome.code, 42);
  EXPECT_THAT(outcome.err, HasSubstr("job failed: rank 2"));
  EXPECT_THAT(outcome.err, HasSubstr(": lost rank 2\n"));
}

TEST(Launch, ARankMayEndEarlyAndWell) {  // the other works on for a while
  const Outcome outcome = run(shell(2, "[ $RANK = 0 ] && exit 0; sleep 0.3; echo done"));
  EXPECT_EQ(outcome.code, 0);
  EXPECT_EQ(outcome.out, "[rank 1] done\n");
}

TEST(Launch, AStoppedRankIsNamedAndEndsTheJob) {
  LaunchOptions options = shell(2, "[ $RANK = 1 ] && kill -STOP $$; exec sleep 60");
  options.stall_timeout_s = 0.3;
  const Outcome outcome = run(options);
  EXPECT_EQ(outcome.code, 1);
  EXPECT_LT(outcome.seconds, 5);
  EXPECT_THAT(outcome.err, HasSubstr("job failed: rank 1 (pid "));
  EXPECT_THAT(outcome.err, HasSubstr("has been stopped by SIGSTOP for 0."));
}

// Stopped for less than the timeout; then it works for longer.
TEST(Launch, AShortStopIsNoFailure) {
  LaunchOptions options = shell(1, "(sleep 0.2; kill -CONT $$) & kill -STOP $$; sleep 0.8; wait; echo done");
  options.stall_timeout_s = 0.6;
  const Outcome outcome = run(options);
  EXPECT_EQ(outcome.code, 0);
  EXPECT_EQ(outcome.out, "done\n");
}

// What a rank leaves behind ends with the job, even in a session of its own and deaf to SIGTERM.
TEST(Launch, LeavesNoProcessBehind) {
  const std::string file = ::testing::TempDir() + "left_behind";
  std::filesystem::remove(file);
  const Outcome outcome = run(shell(1, "setsid sh -c 'trap \"\" TERM; echo $$ > " + file +
                                           "; sleep 60' & while [ ! -s " + file + " ]; do sleep 0.01; done; exit 3"));
  EXPECT_EQ(outcome.code, 3);
  int pid = 0;
  std::ifstream(file) >> pid;
  ASSERT_GT(pid, 0);
  EXPECT_EQ(::kill(pid, 0), -1);
}

TEST(Launch, AProgramThatCannotStartIsAnError) {
  LaunchOptions options = shell(2, "");
  options.argv = {"/dev/null"};
  const Outcome outcome = run(options);
  EXPECT_EQ(outcome.code, 1);
  EXPECT_THAT(outcome.err, HasSubstr("cannot run '/dev/null': Permission denied"));
}

TEST(Launch, RefusesOptionsThatCannotWork) {
  const auto refused = [](auto change) {
    LaunchOptions options = shell(1, "true");
    change(options);
    EXPECT_THROW(launch(options), ValueError);
  };
  refused([](LaunchOptions& options) { options.nproc = 0; });
  refused([](LaunchOptions& options) { options.nproc = 1'000'000'000; });
  refused([](LaunchOptions& options) { options.nnodes = 0; });
  refused([](LaunchOptions& options) { options.node_rank = 1; });
  refused([](LaunchOptions& options) { options.master_port = 70'000; });
  refused([](LaunchOptions& options) { options.stall_timeout_s = -1; });
  refused([](LaunchOptions& options) { options.log_dir = "/proc/nowhere"; });
  refused([](LaunchOptions& options) { options.argv.clear(); });
}

TEST(Launch, LogFilesHaveAllBytesOfARank) {
  LaunchOptions options = shell(2, "printf 'a%s\\rb\\n' $RANK; echo err >&2");
  options.log_dir = ::testing::TempDir() + "logs/deep";
  EXPECT_EQ(run(options).code, 0);
  std::ifstream file(options.log_dir + "/rank-1.log");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  EXPECT_THAT(text, HasSubstr("a1\rb\n"));
  EXPECT_THAT(text, HasSubstr("err\n"));
}

// The caller may have children of its own: a shell that becomes the launcher by exec, for example.
TEST(Launch, LeavesTheCallersOwnChildrenAlone) {
  const pid_t other = ::fork();
  if (other == 0) {
    ::execl("/bin/sleep", "sleep", "60", nullptr);
    ::_exit(1);
  }
  EXPECT_EQ(run(shell(2, "kill -KILL $PPID; exec sleep 60")).code, 128 + SIGKILL);  // the supervisor dies
  EXPECT_EQ(::waitpid(other, nullptr, WNOHANG), 0);
  EXPECT_THAT(children(::getpid()), ::testing::ElementsAre(other));
  ::kill(other, SIGKILL);
  ::waitpid(other, nullptr, 0);
}

}  // namespace
}  // namespace zeroshard
