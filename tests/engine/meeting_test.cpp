// How ranks come together: here as threads over a board in memory.
#include "zeroshard/meeting.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "comm/peer_watch.h"
#include "launch/heartbeat_board.h"
#include "zeroshard/error.h"

namespace zeroshard {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// What a store keeps.
class Board {
 public:
  NoteBoard calls() {
    return {.write =
                [this](const std::string& key, const std::string& note) {
                  const std::scoped_lock lock(mutex_);
                  notes_[key] = note;
                },
            .count =
                [this](const std::string& key) {
                  const std::scoped_lock lock(mutex_);
                  return ++counts_[key];
                },
            .has =
                [this](const std::string& key) {
                  const std::scoped_lock lock(mutex_);
                  return notes_.contains(key);
                },
            .read =
                [this](const std::string& key) {
                  const std::scoped_lock lock(mutex_);
                  return notes_.at(key);
                }};
  }

 private:
  std::mutex mutex_;
  std::map<std::string, std::string> notes_;
  std::map<std::string, int64_t> counts_;
};

void await(Meeting& meeting) {
  while (!meeting.all_here()) std::this_thread::yield();
}

std::string error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const CommError& error) {
    return error.what();
  }
  return "no error";
}

TEST(MeetingTest, EndsWhenAllRanksHaveCome) {
  for (const int world_size : {1, 2, 3, 4, 7}) {
    Board board;
    std::vector<std::thread> ranks;
    for (int rank = 0; rank < world_size; ++rank)
      ranks.emplace_back([&board, rank, world_size] {
        for (int time = 0; time < 3; ++time) {  // one after the other over the same board
          Meeting meeting(board.calls(), rank, world_size, 60'000);
          await(meeting);
          meeting.check("nothing");
          meeting.end();
        }
      });
    for (std::thread& rank : ranks) rank.join();
  }
}

TEST(MeetingTest, SaysWhoCameAndWhoDidNot) {
  Board board;
  Meeting second(board.calls(), 2, 4, 60'000), first(board.calls(), 0, 4, 1);
  EXPECT_THAT(error_of([&] { await(first); }),
              AllOf(HasSubstr("rank 0: of 4 ranks, ranks 1, 3 have not come within 0.001 s (zeroshard.timeout_s)"),
                    HasSubstr("; ranks 0, 2 came")));
  Board many;
  Meeting alone(many.calls(), 1, 100, 1);
  EXPECT_THAT(
      error_of([&] { await(alone); }),
      AllOf(HasSubstr("ranks 0, 2, 3, 4"), HasSubstr(" and 83 more have not come"), HasSubstr("; rank 1 came")));
}

// A process that does nothing, and its card on the board as that of rank 1.
pid_t come_as_rank_1(Board& board) {
  const pid_t child = ::fork();
  if (child == 0) {
    for (;;) ::pause();
  }
  board.calls().write("zeroshard/meeting/0/1/card/1", this_host() + "\n" + std::to_string(child) + "\n0");
  return child;
}

void kill_child(pid_t child) {
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
}

TEST(MeetingTest, NamesTheRankThatDies) {
  Board board;
  const pid_t child = come_as_rank_1(board);
  Meeting meeting(board.calls(), 0, 3, 60'000);
  EXPECT_FALSE(meeting.all_here());
  kill_child(child);
  const std::string who = "rank 0: rank 1 (pid " + std::to_string(child) + ") died";
  EXPECT_EQ(error_of([&] { await(meeting); }), who + " before all ranks had come");
  EXPECT_EQ(error_of([&] { meeting.explain("Connection closed by peer"); }), who + ": Connection closed by peer");
}

TEST(MeetingTest, RankZeroLeavesOnceThoseThatHaveComeKnowWhy) {
  for (const bool again : {false, true}) {  // it has come to this meeting, or to the one before
    SCOPED_TRACE(again);
    Board board;
    const std::string prefix = "zeroshard/meeting/0/";
    const pid_t child = come_as_rank_1(board);
    if (again) board.calls().count(prefix + "rank/0");
    Meeting meeting(board.calls(), 0, 3, 60'000);
    EXPECT_FALSE(meeting.all_here());
    std::atomic<bool> told{false};
    std::thread rank_1([&] {
      while (!board.calls().has(prefix + (again ? "2" : "1") + "/over")) std::this_thread::yield();
      std::this_thread::sleep_for(std::chrono::milliseconds(50));  // by then it would have left
      told = true;
      board.calls().write(prefix + (again ? "2" : "1") + "/left/1", "");
    });
    meeting.leave("rank 2 died");
    EXPECT_TRUE(told);
    rank_1.join();
    kill_child(child);
  }
}

TEST(MeetingTest, RankZeroAwaitsNobodyWhoHasDied) {
  Board board;
  const pid_t child = come_as_rank_1(board);
  Meeting meeting(board.calls(), 0, 3, 60'000);
  EXPECT_FALSE(meeting.all_here());
  kill_child(child);
  const auto start = std::chrono::steady_clock::now();
  meeting.leave("rank 1 died");
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(2));
}

TEST(MeetingTest, OneThatComesTooLateSaysWhatEndedTheMeeting) {
  Board board;
  const pid_t child = come_as_rank_1(board);
  Meeting first(board.calls(), 0, 3, 60'000);
  board.calls().write("zeroshard/meeting/0/1/left/1", "");
  first.leave("rank 7 died");
  Meeting last(board.calls(), 2, 3, 60'000);
  EXPECT_TRUE(board.calls().has("zeroshard/meeting/0/1/left/2"));
  EXPECT_FALSE(last.all_here());
  kill_child(child);
  EXPECT_THAT(error_of([&] { await(last); }),
              AllOf(HasSubstr("rank 1 (pid"), HasSubstr("before this rank came, rank 0 left before all ranks were "
                                                        "connected (rank 7 died)")));
}

TEST(MeetingTest, TellsWhyTheMeetingWasOverRatherThanWhoEndedOfIt) {
  Board board;
  const pid_t child = come_as_rank_1(board);
  Meeting meeting(board.calls(), 0, 3, 60'000);
  EXPECT_FALSE(meeting.all_here());
  board.calls().write("zeroshard/meeting/0/1/over", "1\nrank 2 has not come");
  kill_child(child);
  EXPECT_THAT(error_of([&] { await(meeting); }),
              HasSubstr("rank 0: rank 1 left before all ranks were connected (rank 2 has not come)"));
}

TEST(MeetingTest, NamesTheRankThatDiesWhileAllAreConnected) {
  Board board;
  const pid_t child = come_as_rank_1(board);
  board.calls().count("zeroshard/meeting/0/1/came");
  Meeting meeting(board.calls(), 0, 2, 60'000);
  EXPECT_TRUE(meeting.all_here());
  meeting.check("groups");
  kill_child(child);
  std::optional<std::string> error;
  while (!error) {
    const std::string text = error_of([&] { meeting.check("groups"); });
    if (text != "no error") error = text;
  }
  EXPECT_EQ(*error, "rank 0: rank 1 (pid " + std::to_string(child) + ") died while ranks were connected (groups)");
}

TEST(MeetingTest, ConnectingTakesNoLongerThanComing) {
  Board board;
  Meeting meeting(board.calls(), 0, 1, 1);
  await(meeting);
  std::string error = "no error";
  while (error == "no error") error = error_of([&] { meeting.check("process groups"); });
  EXPECT_THAT(error, HasSubstr("all 1 ranks came, but they were not connected (process groups) within 0.001 s"));
  EXPECT_EQ(error_of([&] { meeting.explain("no route to host"); }),
            "rank 0: ranks cannot be connected: no route to host");
}

// Of a rank that finds that another one left.
std::string left(int rank, const std::string& reason) {
  return "rank " + std::to_string(rank) + " left before all ranks were connected (" + reason +
         "). To try again, every rank has to";
}

void expect_that_all_meet(Board& board, int world_size, bool retried) {
  std::vector<std::unique_ptr<Meeting>> ranks;
  for (int rank = 0; rank < world_size; ++rank)
    ranks.push_back(std::make_unique<Meeting>(board.calls(), rank, world_size, 60'000));
  for (const auto& rank : ranks) {
    EXPECT_TRUE(rank->all_here());
    EXPECT_EQ(rank->number(), ranks.front()->number());
    EXPECT_EQ(rank->retried(), retried);
    rank->end();
  }
}

TEST(MeetingTest, OneThatLeavesEndsItForAllAndTheNextTryBeginsAnew) {
  for (const int who : {0, 1, 2}) {
    Board board;
    expect_that_all_meet(board, 3, false);
    std::vector<std::unique_ptr<Meeting>> ranks;
    for (const int rank : {who, (who + 1) % 3})
      ranks.push_back(std::make_unique<Meeting>(board.calls(), rank, 3, 60'000));
    EXPECT_FALSE(ranks[1]->all_here());
    ranks[0]->leave("KeyboardInterrupt");
    EXPECT_THAT(error_of([&] { await(*ranks[1]); }), HasSubstr(left(who, "KeyboardInterrupt")));
    expect_that_all_meet(board, 3, true);  // the third comes for the first time
    expect_that_all_meet(board, 3, true);
  }
}

TEST(MeetingTest, OneThatLeavesWhileAllAreConnectedIsNamed) {
  Board board;
  Meeting first(board.calls(), 0, 2, 60'000), second(board.calls(), 1, 2, 60'000);
  EXPECT_TRUE(first.all_here());
  EXPECT_TRUE(second.all_here());
  second.leave("MemoryError");
  std::string error = "no error";
  while (error == "no error") error = error_of([&] { first.check("groups"); });
  EXPECT_EQ(error, "rank 0: " + left(1, "MemoryError"));
  EXPECT_EQ(error_of([&] { first.explain("Connection reset"); }), error + ": Connection reset");
  expect_that_all_meet(board, 2, true);
}

TEST(MeetingTest, OneThatComesAfterAnothersTimeOutMeetsItsNextTry) {
  Board board;
  Meeting first(board.calls(), 0, 2, 1);
  EXPECT_THAT(error_of([&] { await(first); }), HasSubstr("rank 1 has not come within 0.001 s"));
  expect_that_all_meet(board, 2, true);
}

TEST(MeetingTest, RanksThatComeForDifferentThingsAreTold) {
  Board board;
  Meeting first(board.calls(), 0, 2, 60'000, "the default group"), second(board.calls(), 1, 2, 60'000, "groups");
  EXPECT_THAT(
      error_of([&] { await(first); }),
      HasSubstr("rank 0 is to connect the default group, but rank 1 is to connect groups: an earlier try has failed"));
  first.leave("CommError");
  EXPECT_THAT(error_of([&] { await(second); }),
              HasSubstr("rank 1 is to connect groups, but rank 0 is to connect the default group"));
  EXPECT_TRUE(first.out_of_step() && second.out_of_step());
  expect_that_all_meet(board, 2, true);
}

// An error that a program keeps keeps the meeting, too.
TEST(MeetingTest, TheLauncherIsToldOfNoWaitOnceARankHasLeft) {
  const HeartbeatBoard launcher(1);
  ::setenv("ZEROSHARD_HEARTBEAT_FD", std::to_string(launcher.fd()).c_str(), 1);
  ::setenv("LOCAL_RANK", "0", 1);
  Board board;
  for (const bool late : {false, true}) {
    Meeting meeting(board.calls(), 0, 2, late ? 1 : 60'000);
    EXPECT_GT(launcher.read(0).meeting_since_ns, 0);
    EXPECT_EQ(launcher.read(0).meeting_size, 2);
    if (late)
      EXPECT_THROW(await(meeting), CommError);
    else
      meeting.leave("KeyboardInterrupt");
    EXPECT_EQ(launcher.read(0).meeting_since_ns, 0);
  }
  ::unsetenv("ZEROSHARD_HEARTBEAT_FD");
  ::unsetenv("LOCAL_RANK");
}

TEST(MeetingTest, AnErrorOfTheBoardPasses) {
  NoteBoard broken = Board().calls();
  broken.count = [](const std::string&) -> int64_t { throw std::runtime_error("gone"); };
  EXPECT_THROW(Meeting(broken, 0, 2, 1000), std::runtime_error);
}

}  // namespace
}  // namespace zeroshard
