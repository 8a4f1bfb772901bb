#include "comm_c10d/divergence.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <deque>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "support/comm_conformance.h"
#include "support/comm_world.h"
#include "support/expect.h"

namespace zeroshard {
namespace {

using testing::Clock, testing::expect_contains, testing::seconds_since;

using Difference = std::optional<std::string>;

// One rank with two communicators, and what it calls in them.
class Caller {
 public:
  Caller(const c10::intrusive_ptr<c10d::Store>& store, int rank, int world_size)
      : divergence_(store, rank, world_size) {
    for (int i = 0; i < 2; ++i) divergence_.add_communicator();
  }

  // In communicator `number`; afterwards the rank waits there.
  void call(size_t number, OpKind kind, std::string_view tag) {
    number_ = number;
    waits_ = true;
    op_ = Op(kind, 4, DType::kFloat32, tag);
    op_.seq = ++seq_[number];
    hash_[number] = hash_[number] * 31 + std::hash<std::string>()(op_.text());
    divergence_.note(number, op_, hash_[number]);
  }
  void go_on() { waits_ = false; }
  Difference look() { return divergence_.look(number_, waits_ ? &op_ : nullptr); }

  // On a busy machine the other ranks may begin late, and the store may take longer to answer than one look waits.
  Difference look_until_found() {
    const auto start = Clock::now();
    while (seconds_since(start) < 60) {
      if (auto difference = look()) return difference;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return std::nullopt;
  }

 private:
  Divergence divergence_;
  size_t number_ = 0;
  Op op_;
  bool waits_ = false;
  std::array<uint64_t, 2> seq_{}, hash_{};
};

std::deque<Caller> callers(const c10::intrusive_ptr<c10d::Store>& store, int world_size) {
  std::deque<Caller> ranks;
  for (int rank = 0; rank < world_size; ++rank) ranks.emplace_back(store, rank, world_size);
  return ranks;
}

// As one whose host is stopped: it answers only once it goes on.
class StoppableStore final : public c10d::HashStore {
 public:
  bool check(const std::vector<std::string>& keys) override {
    while (stopped) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return c10d::HashStore::check(keys);
  }
  std::atomic<bool> stopped{true};
};

TEST(Divergence, AStoreThatDoesNotAnswerHoldsNobodyUp) {
  const auto store = c10::make_intrusive<StoppableStore>();
  auto ranks = callers(store, 2);
  ranks[0].call(0, OpKind::kAllGather, "a");
  ranks[1].call(0, OpKind::kAllReduce, "a");
  const auto start = Clock::now();
  EXPECT_FALSE(ranks[0].look());
  EXPECT_FALSE(ranks[1].look());
  EXPECT_FALSE(ranks[0].look());
  EXPECT_LT(seconds_since(start), 5);
  store->stopped = false;
  const auto difference = ranks[0].look_until_found();
  ASSERT_TRUE(difference);
  expect_contains(*difference, {"ranks disagree: in collective #1 rank 0 called", "rank 1 called all_reduce"});
}

// The first to find out may host the store.
TEST(Divergence, NobodyLeavesBeforeAllHaveFoundOut) {
  auto ranks = callers(c10::make_intrusive<c10d::HashStore>(), 3);
  for (size_t rank = 0; rank < 3; ++rank) ranks[rank].call(0, rank == 1 ? OpKind::kAllReduce : OpKind::kBarrier, "a");
  EXPECT_FALSE(ranks[0].look());
  std::atomic<bool> last_has_looked{false};
  const auto errors = testing::run_threads(3, [&](int rank) {
    std::this_thread::sleep_for(std::chrono::milliseconds(350 * rank));  // more than one look of those before
    if (rank == 2) last_has_looked = true;
    testing::require(ranks[static_cast<size_t>(rank)].look_until_found().has_value(), "no difference found");
    testing::require(last_has_looked, "a rank left before the last one had looked");
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
}

// One that never looks, because it is dead or computes, holds the others up for no longer than said.
TEST(Divergence, ARankThatFindsNothingDoesNotHoldTheOthers) {
  auto ranks = callers(c10::make_intrusive<c10d::HashStore>(), 3);
  ranks[0].call(0, OpKind::kAllGather, "a");
  ranks[1].call(0, OpKind::kAllReduce, "a");
  EXPECT_FALSE(ranks[0].look());
  const auto start = Clock::now();
  EXPECT_TRUE(ranks[1].look_until_found());
  EXPECT_LT(seconds_since(start), 20);
}

// Ranks 0 and 2 gather a unit, rank 1 ends its step: each is the first call of its communicator.
TEST(Divergence, RanksThatWaitInTwoCommunicatorsFindOut) {
  auto ranks = callers(c10::make_intrusive<c10d::HashStore>(), 3);
  for (size_t rank = 0; rank < 3; ++rank) {
    ranks[rank].call(0, OpKind::kAllGather, "same");
    if (rank == 1) {
      ranks[rank].call(1, OpKind::kAllReduce, "step end");
    } else {
      ranks[rank].call(0, OpKind::kAllGather, "model.layers.3");
    }
  }
  const auto errors = testing::run_threads(3, [&](int rank) {
    const Difference difference = ranks[static_cast<size_t>(rank)].look_until_found();
    throw std::runtime_error(difference.value_or("nothing found"));
  });
  for (const std::string& error : errors)
    expect_contains(error, {"ranks disagree: ", "called collective #2 all_gather('model.layers.3', 16 bytes fp32)",
                            "rank 1 called collective #1 all_reduce('step end', 16 bytes fp32"});
}

// The texts that ranks told lie in the store; `looks` of all ranks, each long enough for an answer.
void expect_nothing_found(std::deque<Caller>& ranks) {
  for (int i = 0; i < 3; ++i)
    for (Caller& rank : ranks) EXPECT_EQ(rank.look(), std::nullopt);
}

// One of the two has called what the other waits for: that one goes on.
TEST(Divergence, ARankThatIsAheadIsNoDifference) {
  for (const size_t ahead : {0, 1}) {
    auto ranks = callers(c10::make_intrusive<c10d::HashStore>(), 2);
    ranks[ahead].call(1, OpKind::kExchange, "bucket");
    ranks[ahead].call(0, OpKind::kAllGather, "model.layers.3");
    ranks[1 - ahead].call(1, OpKind::kExchange, "bucket");
    expect_nothing_found(ranks);
    // The same looks do find one that lacks what the other waits for.
    ranks[1 - ahead].call(1, OpKind::kAllReduce, "step end");
    for (const std::string& error : testing::run_threads(2, [&](int rank) {
           testing::require(ranks[size_t(rank)].look_until_found().has_value(), "nothing found");
         }))
      EXPECT_EQ(error, "");
  }
}

TEST(Divergence, ARankThatDoesNotWaitIsNoDifference) {
  auto ranks = callers(c10::make_intrusive<c10d::HashStore>(), 2);
  ranks[0].call(0, OpKind::kAllGather, "model.layers.3");
  ranks[1].call(1, OpKind::kAllReduce, "step end");
  ranks[1].go_on();  // its call has failed
  expect_nothing_found(ranks);
}

// What ranks told over the same store before: rank 1 waited for a call that rank 0 has not made now.
TEST(Divergence, PlacesOfAnEarlierOneAreForgotten) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  auto before = callers(store, 2);
  for (int i = 0; i < 5; ++i) before[1].call(1, OpKind::kAllReduce, "step end");
  EXPECT_EQ(before[1].look(), std::nullopt);
  auto ranks = callers(store, 2);
  ranks[0].call(0, OpKind::kAllGather, "model.layers.3");
  for (int i = 0; i < 3; ++i) EXPECT_EQ(ranks[0].look(), std::nullopt);
}

}  // namespace
}  // namespace zeroshard
