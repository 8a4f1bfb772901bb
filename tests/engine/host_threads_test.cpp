#include "engine/host_threads.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace zeroshard {
namespace {

using ::testing::HasSubstr;

TEST(HostThreads, FewAreTold) {
  const std::string torchrun = problem_of_few_threads(/*num_threads=*/1, /*num_cpus=*/128, /*num_ranks=*/8);
  EXPECT_THAT(torchrun, HasSubstr("by 1 thread of each rank, where 128 CPUs are there for 8 ranks"));
  EXPECT_THAT(torchrun, HasSubstr("Set OMP_NUM_THREADS=16 (torchrun sets 1)"));
  EXPECT_THAT(problem_of_few_threads(8, 128, 8), HasSubstr("by 8 threads"));
  EXPECT_THAT(problem_of_few_threads(2, 4, 1), HasSubstr("for 1 rank: "));
}

TEST(HostThreads, HalfOfTheShareIsNotFew) {
  EXPECT_EQ(problem_of_few_threads(9, 128, 8), "");
  EXPECT_EQ(problem_of_few_threads(1, 1, 1), "");
  EXPECT_EQ(problem_of_few_threads(1, 7, 7), "");
  EXPECT_EQ(problem_of_few_threads(1, 2, 7), "");  // more ranks than CPUs
}

}  // namespace
}  // namespace zeroshard
