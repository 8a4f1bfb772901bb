// Heartbeat and HeartbeatBoard: two mappings of one file, here in one process or in a child.
#include "launch/heartbeat.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "launch/heartbeat_board.h"
#include "launch/heartbeat_layout.h"
#include "support/random.h"
#include "zeroshard/rank_environment.h"
#include "zeroshard/rank_observer.h"

namespace zeroshard {
namespace {

using testing::SeededRandom;

using Activity = HeartbeatState::Activity;

// Sets a variable while it lives.
class Variable {
 public:
  Variable(const char* name, const std::string& value) : name_(name) {
    if (const char* old = std::getenv(name)) old_ = old;
    ::setenv(name, value.c_str(), 1);
  }
  ~Variable() { old_ ? ::setenv(name_, old_->c_str(), 1) : ::unsetenv(name_); }
  Variable(const Variable&) = delete;

 private:
  const char* name_;
  std::optional<std::string> old_;
};

Heartbeat connect(const std::string& fd, const std::string& local_rank) {
  const Variable first("ZEROSHARD_HEARTBEAT_FD", fd), second("LOCAL_RANK", local_rank);
  return Heartbeat::from_environment();
}

Heartbeat connect(const HeartbeatBoard& board, int local_rank) {
  return connect(std::to_string(board.fd()), std::to_string(local_rank));
}

// What `body` returns in a child of this process.
int in_child(const std::function<int()>& body) {
  const pid_t pid = ::fork();
  if (pid == 0) ::_exit(body());
  int status = 0;
  ::waitpid(pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

TEST(Heartbeat, TheLauncherSeesStepsAndWaits) {
  const HeartbeatBoard board(3);
  Heartbeat rank = connect(board, 1);
  ASSERT_TRUE(rank.connected());
  EXPECT_FALSE(board.any_step());
  EXPECT_EQ(board.read(1).activity, Activity::kNone);
  EXPECT_EQ(board.read(1).owner, ::getpid());

  const int64_t before = heartbeat::now_ns();
  rank.beat(41);
  rank.waiting("all_gather layer.3.weight");
  HeartbeatState state = board.read(1);
  EXPECT_TRUE(board.any_step());
  EXPECT_EQ(state.activity, Activity::kBeating);
  EXPECT_EQ(state.step, 41);
  EXPECT_EQ(state.where, "all_gather layer.3.weight");
  EXPECT_EQ(state.waiting_thread, ::gettid());
  EXPECT_THAT(state.progress_ns, ::testing::AllOf(::testing::Ge(before), ::testing::Le(heartbeat::now_ns())));
  EXPECT_EQ(state.waiting_since_ns, state.progress_ns);

  rank.done_waiting();
  state = board.read(1);
  EXPECT_EQ(state.where, "");
  EXPECT_EQ(state.waiting_since_ns, 0);
  EXPECT_EQ(board.read(0).step, 0);
  EXPECT_EQ(board.read(2).owner, 0);
}

TEST(Heartbeat, EveryRankLearnsWhatHasFailedOnAnotherHost) {
  HeartbeatBoard board(2);
  const Heartbeat first = connect(board, 0), second = connect(board, 1);
  EXPECT_EQ(second.news(), "");
  board.tell("rank 7 on host b died");
  board.tell("later news");
  EXPECT_EQ(first.news(), "rank 7 on host b died");
  EXPECT_EQ(second.news(), "rank 7 on host b died");
  EXPECT_EQ(Heartbeat().news(), "");
  HeartbeatBoard other(1);
  other.tell(std::string(10'000, 'x'));
  EXPECT_EQ(connect(other, 0).news(), std::string(heartbeat::kNewsBytes, 'x'));
}

TEST(Heartbeat, LongAndOddTextsAreCutAndPrintable) {
  const HeartbeatBoard board(1);
  Heartbeat rank = connect(board, 0);
  rank.waiting(std::string(1000, 'x'));
  EXPECT_EQ(board.read(0).where, std::string(200, 'x'));
  rank.waiting("");
  EXPECT_EQ(board.read(0).where, "");
  EXPECT_NE(board.read(0).waiting_since_ns, 0);
  rank.waiting(std::string("a\n\x1b[2J\0b", 8));
  EXPECT_EQ(board.read(0).where, "a??[2J?b");
}

TEST(Heartbeat, WhatHasFinishedIsNotExpectedToBeat) {
  const HeartbeatBoard board(2);
  Heartbeat rank = connect(board, 0);
  rank.beat(7);
  rank.finish();
  EXPECT_EQ(board.read(0).activity, Activity::kFinished);
  EXPECT_EQ(board.read(0).step, 7);
  rank.beat(8);  // of another engine
  EXPECT_EQ(board.read(0).activity, Activity::kBeating);
  connect(board, 1).finish();
  EXPECT_EQ(board.read(1).activity, Activity::kNone);
}

TEST(LauncherObserver, ReportsByHeartbeats) {
  const HeartbeatBoard board(1);
  const Variable fd(heartbeat::kVariable, std::to_string(board.fd())), local_rank("LOCAL_RANK", "0");
  const auto observer = launcher_observer();
  observer->step_finished(7);
  observer->waiting("barrier");
  EXPECT_EQ(board.read(0).step, 7);
  EXPECT_EQ(board.read(0).where, "barrier");
  observer->done_waiting();
  EXPECT_EQ(board.read(0).where, "");
  const auto another = launcher_observer();
  another->meeting_began(3);
  EXPECT_EQ(board.read(0).meeting_size, 3);
  EXPECT_GT(board.read(0).meeting_since_ns, 0);
  another->meeting_ended();
  EXPECT_EQ(board.read(0).meeting_since_ns, 0);
}

// What ends is a meeting, or a World: an engine of another may go on.
TEST(LauncherObserver, OneThatGoesDoesNotEndTheStepsOfAnother) {
  const HeartbeatBoard board(1);
  const Variable fd(heartbeat::kVariable, std::to_string(board.fd())), local_rank("LOCAL_RANK", "0");
  const auto observer = launcher_observer();
  observer->step_finished(1);
  launcher_observer()->meeting_began(2);
  EXPECT_EQ(board.read(0).activity, Activity::kBeating);
  EXPECT_EQ(board.read(0).meeting_since_ns, 0);
  observer->engine_ended();
  EXPECT_EQ(board.read(0).activity, Activity::kFinished);
}

TEST(Heartbeat, ARankWaitsForAllToComeWhileItsSignLives) {
  const HeartbeatBoard board(2);
  Heartbeat rank = connect(board, 1);  // sets the variables, too
  rank.beat(3);
  const Variable fd(heartbeat::kVariable, std::to_string(board.fd())), local_rank("LOCAL_RANK", "1");
  {
    const MeetingSign sign(3);
    EXPECT_GT(board.read(1).meeting_since_ns, 0);
    EXPECT_EQ(board.read(1).meeting_size, 3);
    EXPECT_EQ(board.read(0).meeting_since_ns, 0);
    EXPECT_EQ(in_child([&] {
                const_cast<MeetingSign&>(sign).~MeetingSign();  // of a process that speaks for no rank
                return board.read(1).meeting_since_ns > 0 ? 0 : 1;
              }),
              0);
  }
  EXPECT_EQ(board.read(1).meeting_since_ns, 0);
  EXPECT_EQ(board.read(1).activity, Activity::kBeating);  // of another engine
}

TEST(Heartbeat, OneProcessSpeaksForARank) {
  const HeartbeatBoard board(1);
  Heartbeat rank = connect(board, 0);
  rank.beat(1);
  const int code = in_child([&] {
    rank.beat(2);  // inherited: does nothing
    rank.waiting("child");
    rank.finish();
    return connect(board, 0).connected() ? 1 : 0;
  });
  EXPECT_EQ(code, 0);
  const HeartbeatState state = board.read(0);
  EXPECT_EQ(state.step, 1);
  EXPECT_EQ(state.where, "");
  EXPECT_EQ(state.activity, Activity::kBeating);
}

TEST(Heartbeat, AnOwnerThatHasEndedIsReplaced) {
  const HeartbeatBoard board(1);
  EXPECT_EQ(in_child([&] { return connect(board, 0).connected() ? 0 : 1; }), 0);
  EXPECT_GT(board.read(0).owner, 0);
  EXPECT_TRUE(connect(board, 0).connected());
  EXPECT_EQ(board.read(0).owner, ::getpid());
}

TEST(Heartbeat, WithoutALauncherNothingHappens) {
  Heartbeat none = Heartbeat::from_environment();
  EXPECT_FALSE(none.connected());
  none.beat(1);
  none.waiting("x");
  none.done_waiting();
}

TEST(Heartbeat, WrongVariablesAreNoLauncher) {
  const HeartbeatBoard board(2);
  const std::string fd = std::to_string(board.fd());
  for (const char* number : {"", "-1", "x", "99999", "1e3", "4294967397", " 7", "7 "}) {
    SCOPED_TRACE(number);
    EXPECT_FALSE(connect(number, "0").connected());
    EXPECT_FALSE(connect(fd, number).connected());
  }
  EXPECT_FALSE(connect(fd, "2").connected());
  EXPECT_TRUE(connect(fd, "1").connected());
}

// The number of the descriptor may be that of any file by now. A board with one byte changed is none either.
TEST(Heartbeat, OtherFilesAreNotMapped) {
  const size_t bytes = heartbeat::board_bytes(1);
  const auto refused = [](int fd) {
    EXPECT_FALSE(connect(std::to_string(fd), "0").connected());
    ::close(fd);
  };
  refused(::open("/dev/null", O_RDWR));
  refused(::open("/dev/zero", O_RDWR));
  refused(::open("/", O_RDONLY));
  refused(::open("/proc/self/exe", O_RDONLY));
  int pipe[2];
  ASSERT_EQ(::pipe(pipe), 0);
  refused(pipe[0]);
  refused(pipe[1]);

  const auto memory_file = [](size_t size, const heartbeat::Header* header, int seals) {
    const int fd = ::memfd_create("test", MFD_ALLOW_SEALING);
    EXPECT_EQ(::ftruncate(fd, static_cast<off_t>(size)), 0);
    struct stat file {};
    ::fstat(fd, &file);
    heartbeat::Header copy = header != nullptr ? *header : heartbeat::Header{};
    if (copy.inode == 1) copy.inode = file.st_ino;
    EXPECT_EQ(::pwrite(fd, &copy, sizeof copy, 0), static_cast<ssize_t>(sizeof copy));
    EXPECT_EQ(::fcntl(fd, F_ADD_SEALS, seals), 0);
    return fd;
  };
  const int sealed = F_SEAL_SHRINK | F_SEAL_GROW;
  const heartbeat::Header good{heartbeat::kMagic, 1, 1, sizeof(heartbeat::Slot), 0, {}};
  const int right = memory_file(bytes, &good, sealed);
  EXPECT_TRUE(connect(std::to_string(right), "0").connected());  // so that what follows is about the differences
  ::close(right);
  refused(memory_file(bytes, &good, F_SEAL_GROW));  // may be cut: a store would be a SIGBUS
  refused(memory_file(bytes + 64, &good, sealed));
  refused(memory_file(heartbeat::board_bytes(2), &good, sealed));
  refused(memory_file(sizeof(heartbeat::Header), &good, sealed));
  refused(memory_file(bytes, &good, sealed | F_SEAL_WRITE));
  refused(memory_file(bytes, nullptr, sealed));
  heartbeat::Header other = good;
  other.magic ^= 1;
  refused(memory_file(bytes, &other, sealed));
  other = good;
  other.inode = 2;
  refused(memory_file(bytes, &other, sealed));
  other = good;
  other.slot_bytes = 256;
  refused(memory_file(bytes, &other, sealed));
}

TEST(Heartbeat, NobodyCanCutTheBoard) {
  const HeartbeatBoard board(1);
  EXPECT_NE(::ftruncate(board.fd(), 0), 0);
  EXPECT_NE(::fcntl(board.fd(), F_ADD_SEALS, F_SEAL_WRITE), 0);
  EXPECT_GE(board.fd(), 100);  // out of the way of shell scripts
}

// A reader sees one whole text, whatever the writers do meanwhile.
TEST(Heartbeat, TextsAreNeverMixed) {
  const HeartbeatBoard board(1);
  Heartbeat rank = connect(board, 0);
  rank.waiting("a");
  std::atomic<bool> stop{false};
  std::vector<std::thread> writers;
  for (const char letter : {'a', 'b', 'c'}) {
    writers.emplace_back([&, letter] {
      for (size_t i = 0; !stop; ++i) {
        rank.waiting(std::string(1 + (i * 37) % 200, letter));
        rank.beat(static_cast<int64_t>(i));
        if (i % 3 == 0) rank.done_waiting();
        std::this_thread::yield();
      }
    });
  }
  int seen = 0, mixed = 0;
  // On a busy machine a writer that has just ended its wait may not go on for many of our looks.
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  for (int i = 0; i < 20'000 || (seen < 1000 && std::chrono::steady_clock::now() < end); ++i) {
    const HeartbeatState state = board.read(0);
    if (state.waiting_since_ns == 0 || state.where == "(changing)") continue;
    ++seen;
    mixed += state.where.empty() || state.where.find_first_not_of(state.where[0]) != std::string::npos;
  }
  stop = true;
  for (std::thread& writer : writers) writer.join();
  EXPECT_GT(seen, 0);
  EXPECT_EQ(mixed, 0);
}

// A rank that dies inside a write leaves the lock closed: neither the launcher nor its successor waits for ever.
TEST(Heartbeat, ADeathInsideAWriteStopsNobody) {
  const HeartbeatBoard board(1);
  void* memory = ::mmap(nullptr, heartbeat::board_bytes(1), PROT_READ | PROT_WRITE, MAP_SHARED, board.fd(), 0);
  ASSERT_NE(memory, MAP_FAILED);
  heartbeat::Slot& slot = *heartbeat::slot_at(memory, 0);
  slot.sequence = 3;
  slot.waiting_since_ns = 5;
  slot.length = uint64_t{1} << 60;
  EXPECT_EQ(board.read(0).where.size(), heartbeat::kTextBytes);
  Heartbeat rank = connect(board, 0);
  EXPECT_EQ(board.read(0).where, "(changing)");  // as if this process were inside
  rank.waiting("x");
  rank.done_waiting();
  rank.beat(3);
  EXPECT_EQ(board.read(0).step, 3);
  ::munmap(memory, heartbeat::board_bytes(1));
}

// The launcher reads what any process of the job may have written.
TEST(HeartbeatBoard, RandomBytesDoNoHarm) {
  const HeartbeatBoard board(2);
  const size_t bytes = heartbeat::board_bytes(2);
  auto* memory = static_cast<unsigned char*>(::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, board.fd(), 0));
  ASSERT_NE(memory, MAP_FAILED);
  SeededRandom random(7);
  for (int round = 0; round < 300; ++round) {
    for (size_t i = 0; i < bytes; ++i) memory[i] = static_cast<unsigned char>(random());
    for (const int rank : {0, 1}) {
      const std::string where = board.read(rank).where;
      EXPECT_LE(where.size(), heartbeat::kTextBytes);
      for (const char c : where) EXPECT_FALSE(c >= 0 && c < 0x20) << round;
    }
  }
  ::munmap(memory, bytes);
}

}  // namespace
}  // namespace zeroshard
