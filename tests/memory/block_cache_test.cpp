#include "memory/block_cache.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <thread>
#include <vector>

#include "support/random.h"

namespace zeroshard {
namespace {

using testing::SeededRandom;

using Block = BlockCache::Block;

constexpr size_t kMegabyte = size_t{1} << 20;

TEST(BlockCache, BlocksAreApartAndHoldWhatIsWritten) {
  BlockCache cache;
  SeededRandom random(1);
  std::vector<Block> blocks;
  for (int i = 0; i < 200; ++i) {
    const size_t asked = kMegabyte / 4 + random() % kMegabyte;
    const Block block = cache.take(asked);
    ASSERT_NE(block.start, nullptr);
    EXPECT_GE(block.bytes, asked);
    EXPECT_LE(block.bytes, asked + asked / 8 + 4096);
    std::memset(block.start, i, block.bytes);
    blocks.push_back(block);
    if (i % 3 != 2) continue;
    const size_t freed = random() % blocks.size();
    cache.give_back(blocks[freed]);
    blocks.erase(blocks.begin() + ptrdiff_t(freed));
  }
  for (const Block& block : blocks) {
    const auto* const bytes = static_cast<const unsigned char*>(block.start);
    EXPECT_TRUE(std::all_of(bytes, bytes + block.bytes, [&](unsigned char byte) { return byte == bytes[0]; }));
    cache.give_back(block);
  }
}

TEST(BlockCache, AFreedBlockIsForTheNextOfItsSize) {
  BlockCache cache;
  const Block first = cache.take(kMegabyte), second = cache.take(kMegabyte), large = cache.take(4 * kMegabyte);
  cache.give_back(large);
  cache.give_back(second);
  cache.give_back(first);
  EXPECT_EQ(cache.kept_bytes(), 6 * kMegabyte);
  EXPECT_EQ(cache.take(kMegabyte).start, first.start);  // freed last
  EXPECT_EQ(cache.take(kMegabyte - kMegabyte / 9).start, second.start);
  EXPECT_EQ(cache.take(4 * kMegabyte).start, large.start);
  EXPECT_EQ(cache.kept_bytes(), 0);
}

TEST(BlockCache, NothingIsWastedOnASmallOne) {
  BlockCache cache;
  const Block large = cache.take(4 * kMegabyte);
  cache.give_back(large);
  EXPECT_EQ(cache.take(3 * kMegabyte).bytes, 3 * kMegabyte);
}

// Any sizes in any order, in steps that grow and shrink.
TEST(BlockCache, InUseAndKeptAreNoMoreThanThePeakOfTwoSteps) {
  BlockCache cache;
  SeededRandom random(2);
  std::vector<Block> blocks;
  size_t used = 0, peak = 0, last_peak = 0, most_kept = 0;
  for (int step = 0; step < 60; ++step) {
    const size_t goal = kMegabyte * (1 + random() % 60);
    for (int i = 0; i < 60; ++i) {
      if (used < goal && (blocks.empty() || random() % 3 != 0)) {
        blocks.push_back(cache.take(kMegabyte / 8 + random() % (2 * kMegabyte)));
        used += blocks.back().bytes;
        peak = std::max(peak, used);
      } else if (!blocks.empty()) {
        std::swap(blocks[random() % blocks.size()], blocks.back());
        used -= blocks.back().bytes;
        cache.give_back(blocks.back());
        blocks.pop_back();
      }
      ASSERT_LE(used + cache.kept_bytes(), std::max(peak, last_peak));
      most_kept = std::max(most_kept, cache.kept_bytes());
    }
    cache.end_step();
    last_peak = peak;
    peak = used;
    ASSERT_LE(used + cache.kept_bytes(), last_peak);
  }
  EXPECT_GT(most_kept, 10 * kMegabyte);
  for (const Block& block : blocks) cache.give_back(block);
}

TEST(BlockCache, WhatStepsNoLongerNeedGoes) {
  BlockCache cache;
  cache.give_back(cache.take(8 * kMegabyte));
  cache.end_step();
  EXPECT_EQ(cache.kept_bytes(), 8 * kMegabyte);
  cache.end_step();
  EXPECT_EQ(cache.kept_bytes(), 0);
  cache.give_back(cache.take(8 * kMegabyte));
  cache.trim();
  EXPECT_EQ(cache.kept_bytes(), 0);
}

TEST(BlockCache, ARefusalOfTheSystemIsNoBlock) {
  BlockCache cache;
  cache.give_back(cache.take(8 * kMegabyte));
  EXPECT_EQ(cache.take(size_t{1} << 60).start, nullptr);
  EXPECT_EQ(cache.kept_bytes(), 0);  // it was tried without
  const Block block = cache.take(kMegabyte);
  ASSERT_NE(block.start, nullptr);
  cache.give_back(block);
}

int64_t now_seconds = 1;

TEST(BlockCache, AProcessThatEndsNoStepKeepsNothingForEver) {
  now_seconds = 1;
  BlockCache cache([] { return now_seconds; });
  const Block large = cache.take(8 * kMegabyte), small = cache.take(kMegabyte);
  cache.give_back(large);
  cache.give_back(small);
  now_seconds += BlockCache::kStepSeconds - 1;
  cache.give_back(cache.take(kMegabyte));
  EXPECT_EQ(cache.kept_bytes(), 9 * kMegabyte);  // a step may take as long: what it needs is there for the next
  for (int i = 0; i < 3; ++i) {
    now_seconds += BlockCache::kStepSeconds;
    cache.give_back(cache.take(kMegabyte));
  }
  EXPECT_EQ(cache.kept_bytes(), kMegabyte);
}

TEST(BlockCache, ThreadsShareOne) {
  BlockCache cache;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&cache, t] {
      testing::Random random{uint64_t(t)};
      for (int i = 0; i < 20'000; ++i) {
        const Block block = cache.take(kMegabyte + (random() % 8) * kMegabyte / 8);
        static_cast<int*>(block.start)[0] = t * 1'000'000 + i;
        if (i % 100 == 0) cache.end_step();
        EXPECT_EQ(static_cast<int*>(block.start)[0], t * 1'000'000 + i);
        cache.give_back(block);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace zeroshard
