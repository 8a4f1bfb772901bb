#include <ATen/Context.h>
#include <ATen/ops/randint.h>
#include <gtest/gtest.h>

#include <set>

#include "zeroshard/checkpoint.h"
#include "zeroshard/error.h"

namespace zeroshard {
namespace {

int64_t draw() {
  return at::randint(int64_t(1) << 62, {1}, at::kLong).item<int64_t>();
}

// What two ranks save, and the number that each draws next.
struct SavedState {
  SavedState() {
    for (const uint64_t seed : {11, 12}) {
      at::manual_seed(seed);
      states.push_back(random_state());
      next.push_back(draw());
    }
  }
  std::vector<std::string> states;
  std::vector<int64_t> next;
};

TEST(RandomState, ARankGoesOnWithItsOwnNumbers) {
  const SavedState saved;
  for (const int rank : {0, 1}) {
    EXPECT_EQ(restore_random_state(saved.states, rank), std::nullopt);
    EXPECT_EQ(draw(), saved.next[size_t(rank)]);
  }
}

TEST(RandomState, ARankThatWasNotThereDrawsItsOwn) {
  const SavedState saved;
  std::set<int64_t> drawn(saved.next.begin(), saved.next.end());
  for (int rank = 2; rank < 6; ++rank) {
    const auto seed = restore_random_state(saved.states, rank);
    ASSERT_TRUE(seed.has_value());
    EXPECT_EQ(*seed, saved.next[size_t(rank) % 2] + rank) << "the same in every program";
    const int64_t first = draw();
    EXPECT_TRUE(drawn.insert(first).second) << rank;
    at::manual_seed(uint64_t(*seed));
    EXPECT_EQ(draw(), first);
  }
}

TEST(RandomState, WhatWasImportedChangesNothing) {
  at::manual_seed(3);
  const int64_t expected = draw();
  at::manual_seed(3);
  EXPECT_EQ(restore_random_state({"{}", "{}"}, 5), std::nullopt);
  EXPECT_EQ(draw(), expected);
}

TEST(RandomState, AnotherFormOfAnyRankIsRefused) {
  SavedState saved;
  saved.states.emplace_back(R"({"random": {"torch": "AAAA"}})");
  at::manual_seed(3);
  const int64_t expected = draw();
  at::manual_seed(3);
  EXPECT_THROW(restore_random_state(saved.states, 0), ValueError);
  EXPECT_EQ(draw(), expected);
}

}  // namespace
}  // namespace zeroshard
