// The group for the memory of the host that ranks of devices make beside their own.
#include "comm_c10d/group_beside.h"

#include <gmock/gmock.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <future>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "base/interrupt.h"
#include "comm_c10d/c10d_bootstrap.h"
#include "support/comm_world.h"
#include "zeroshard/error.h"

namespace zeroshard {
namespace {

using ::testing::HasSubstr;
using Store = c10::intrusive_ptr<c10d::Store>;

// A group that moves nothing: it lends its store.
GroupBeside make_beside(const Store& store, int rank, int world_size, int64_t timeout_ms = 600'000) {
  c10d::ProcessGroup group(store, rank, world_size);
  CommOptions options;
  options.timeout_ms = timeout_ms;
  return make_group_beside(group, options);
}

// All ranks are in the same group.
void expect_connected(const GroupBeside& beside, int rank) {
  const auto texts = C10dBootstrap(beside.group, {}).all_gather(std::string(size_t(rank) + 1, 'x'));
  for (size_t peer = 0; peer < texts.size(); ++peer) EXPECT_EQ(texts[peer].size(), peer + 1);
}

TEST(GroupBeside, ConnectsTheRanksAnyNumberOfTimes) {
  const Store store = c10::make_intrusive<c10d::HashStore>();
  const auto errors = testing::run_threads(3, [&](int rank) {
    for (int i = 0; i < 3; ++i) expect_connected(make_beside(store, rank, 3), rank);
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
}

TEST(GroupBeside, NamesARankThatDoesNotCome) {
  const Store store = c10::make_intrusive<c10d::HashStore>();
  const auto errors = testing::run_threads(3, [&](int rank) {
    if (rank != 1) make_beside(store, rank, 3, /*timeout_ms=*/1500);
  });
  for (const int rank : {0, 2}) EXPECT_THAT(errors[size_t(rank)], HasSubstr("rank 1")) << rank;
  EXPECT_THAT(errors[0] + errors[2], HasSubstr("missing: rank 1"));
}

// Rank 1 alone has failed once; its count of tries differs from the others'.
TEST(GroupBeside, ATryAfterOneThatFailedOnSomeRanksConnectsAll) {
  const Store store = c10::make_intrusive<c10d::HashStore>();
  EXPECT_THROW(make_beside(store, 1, 2, /*timeout_ms=*/300), CommError);
  const auto errors = testing::run_threads(2, [&](int rank) { expect_connected(make_beside(store, rank, 2), rank); });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
}

void write_card(const Store& store, int rank, int32_t pid) {
  store->set(concat("zeroshard/beside/card/", rank), concat("1 ", pid, " 0 ", this_host()));
}

// Returns once rank 0, the only one that runs, connects to the ranks whose cards it has read.
void await_connecting(const Store& store) {
  constexpr int64_t kCards = 3;  // of two ranks, and rank 0's number of tries; then come Gloo's own keys
  while (store->getNumKeys() <= kCards) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

TEST(GroupBeside, ARankThatBeginsAgainFindsThoseThatConnectToItsTryBefore) {
  const Store store = c10::make_intrusive<c10d::HashStore>();
  write_card(store, 1, ::getpid());
  const auto errors = testing::run_threads(2, [&](int rank) {
    if (rank == 1) await_connecting(store);
    expect_connected(make_beside(store, rank, 2), rank);
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
}

// A child that has come, and does not connect.
pid_t start_silent_rank(int rank, const Store& store) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::pause();
    ::_exit(0);
  }
  write_card(store, rank, child);
  return child;
}

TEST(GroupBeside, NamesARankThatDiesMeanwhile) {
  const Store store = c10::make_intrusive<c10d::HashStore>();
  const pid_t child = start_silent_rank(1, store);
  std::thread killer([&] {
    await_connecting(store);
    ::kill(child, SIGKILL);
  });
  std::string error;
  try {
    make_beside(store, 0, 2);
  } catch (const CommError& caught) {
    error = caught.what();
  }
  killer.join();
  ::waitpid(child, nullptr, 0);
  EXPECT_THAT(error, HasSubstr("rank 1 (pid " + std::to_string(child) + ") died while ranks were connected"));
}

// The card of a process that is gone is of a run before.
TEST(GroupBeside, ACardOfARunBeforeIsNone) {
  const Store store = c10::make_intrusive<c10d::HashStore>();
  const pid_t child = start_silent_rank(1, store);
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  const auto errors = testing::run_threads(2, [&](int rank) { expect_connected(make_beside(store, rank, 2), rank); });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
}

std::atomic<bool> is_interrupted = false;

TEST(GroupBeside, CanBeInterruptedWhileRanksAreMissingAndWhileTheyConnect) {
  const Store store = c10::make_intrusive<c10d::HashStore>();
  set_interrupt_check([] {
    if (is_interrupted) throw std::runtime_error("Ctrl-C");
  });
  is_interrupted = true;
  const auto interrupted = [&] { make_beside(store, 0, 2); };
  EXPECT_THROW(interrupted(), std::runtime_error);
  const pid_t child = start_silent_rank(1, store);
  EXPECT_THROW(interrupted(), std::runtime_error);
  set_interrupt_check(nullptr);
  is_interrupted = false;
  EXPECT_THAT(store->get_to_str("zeroshard/beside/card/0"), HasSubstr("left Ctrl-C"));
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
}

}  // namespace
}  // namespace zeroshard
