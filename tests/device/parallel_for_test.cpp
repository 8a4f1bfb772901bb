#include "device/parallel_for.h"

#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <random>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

namespace zeroshard {
namespace {

using Ranges = std::vector<std::pair<int64_t, int64_t>>;

class ParallelFor : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override { at::set_num_threads(GetParam()); }
  void TearDown() override { at::set_num_threads(threads_); }

 private:
  const int threads_ = at::get_num_threads();
};

// Returns the ranges in ascending order.
Ranges ranges_of(int64_t begin, int64_t end, int64_t grain) {
  std::mutex mutex;
  Ranges ranges;
  parallel_for(begin, end, grain, [&](int64_t first, int64_t last) {
    const std::lock_guard lock(mutex);
    ranges.emplace_back(first, last);
  });
  std::sort(ranges.begin(), ranges.end());
  return ranges;
}

TEST_P(ParallelFor, CoversTheRangeOnceInPartsThatAreNotTooSmall) {
  std::mt19937 random(1);
  for (int i = 0; i < 200; ++i) {
    const int64_t begin = std::uniform_int_distribution<int64_t>(-9, 9)(random);
    const int64_t end = begin + std::uniform_int_distribution<int64_t>(-3, 40)(random);
    const int64_t grain = std::uniform_int_distribution<int64_t>(1, 12)(random);
    const Ranges ranges = ranges_of(begin, end, grain);
    EXPECT_LE(ranges.size(), size_t(GetParam()));
    int64_t next = begin;
    for (const auto& [first, last] : ranges) {
      EXPECT_EQ(first, next);
      EXPECT_TRUE(2 * (last - first) >= grain || last == end) << first << " to " << last << ", grain " << grain;
      next = last;
    }
    EXPECT_EQ(next, std::max(begin, end));
  }
}

TEST_P(ParallelFor, ManyElementsUseAllThreads) {
  std::mutex mutex;
  std::vector<std::thread::id> threads;
  std::vector<int> indices;
  parallel_for(0, 1000, 1, [&](int64_t, int64_t) {
    const std::lock_guard lock(mutex);
    threads.push_back(std::this_thread::get_id());
    indices.push_back(at::get_thread_num());
  });
  std::sort(threads.begin(), threads.end());
  EXPECT_EQ(std::unique(threads.begin(), threads.end()) - threads.begin(), GetParam());
  std::sort(indices.begin(), indices.end());
  for (int i = 0; i < GetParam(); ++i) EXPECT_EQ(indices.at(size_t(i)), i);
}

TEST_P(ParallelFor, ALoopWithinAnotherRunsOnItsThread) {
  std::atomic<int> calls{0};
  parallel_for(0, GetParam(), 1, [&](int64_t, int64_t) {
    const std::thread::id outer = std::this_thread::get_id();
    parallel_for(0, 100, 1, [&](int64_t first, int64_t last) {
      EXPECT_EQ(std::this_thread::get_id(), outer);
      EXPECT_EQ(last - first, 100);
      ++calls;
    });
  });
  EXPECT_EQ(calls, GetParam());
}

TEST_P(ParallelFor, AnExceptionOfAnyThreadReachesTheCaller) {
  for (int failing = 0; failing < GetParam(); ++failing) {
    std::atomic<int> calls{0};
    EXPECT_THROW(parallel_for(0, GetParam(), 1,
                              [&](int64_t first, int64_t) {
                                ++calls;
                                if (first == failing) throw std::out_of_range("this one");
                              }),
                 std::out_of_range);
    EXPECT_EQ(calls, GetParam());
    EXPECT_FALSE(at::in_parallel_region());
  }
  EXPECT_EQ(ranges_of(0, 100, 1).size(), size_t(GetParam()));  // the next loop is whole
}

INSTANTIATE_TEST_SUITE_P(Threads, ParallelFor, ::testing::Values(1, 2, 3));

}  // namespace
}  // namespace zeroshard
