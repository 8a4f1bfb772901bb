#include "zeroshard/rank_environment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "zeroshard/error.h"

namespace zeroshard {
namespace {

using Variables = std::map<std::string, std::string>;

RankEnvironment read(const Variables& variables) {
  return rank_environment([&](const char* name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    if (found == variables.end()) return {};
    return found->second;
  });
}

std::string error_of(const Variables& variables) {
  try {
    read(variables);
  } catch (const ValueError& error) {
    return error.what();
  }
  return "no error";
}

TEST(RankEnvironment, OneRankWithoutLauncher) {
  const RankEnvironment env = read({});
  EXPECT_EQ(env.rank, 0);
  EXPECT_EQ(env.world_size, 1);
  EXPECT_EQ(env.local_rank, 0);
  EXPECT_EQ(env.local_world_size, 1);
  EXPECT_EQ(env.source, "");
}

struct Case {
  const char* source;
  Variables variables;
  int local_world_size;
};

TEST(RankEnvironment, ReadsEveryLauncher) {
  const Case cases[] = {
      {"torchrun", {{"RANK", "5"}, {"WORLD_SIZE", "8"}, {"LOCAL_RANK", "1"}, {"LOCAL_WORLD_SIZE", "4"}}, 4},
      {"torchrun", {{"RANK", "5"}, {"WORLD_SIZE", "8"}, {"LOCAL_RANK", "1"}}, 0},
      {"Open MPI",
       {{"OMPI_COMM_WORLD_RANK", "5"},
        {"OMPI_COMM_WORLD_SIZE", "8"},
        {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
        {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"}},
       4},
      {"MVAPICH2",
       {{"MV2_COMM_WORLD_RANK", "5"},
        {"MV2_COMM_WORLD_SIZE", "8"},
        {"MV2_COMM_WORLD_LOCAL_RANK", "1"},
        {"MV2_COMM_WORLD_LOCAL_SIZE", "4"}},
       4},
      {"MPICH", {{"PMI_RANK", "5"}, {"PMI_SIZE", "8"}, {"MPI_LOCALRANKID", "1"}, {"MPI_LOCALNRANKS", "4"}}, 4},
      {"Slurm", {{"SLURM_PROCID", "5"}, {"SLURM_NTASKS", "8"}, {"SLURM_LOCALID", "1"}}, 0},
      {"Slurm",
       {{"SLURM_PROCID", "5"},
        {"SLURM_NTASKS", "64"},
        {"SLURM_STEP_NUM_TASKS", "8"},
        {"SLURM_LOCALID", "1"},
        {"SLURM_JOB_ID", "77"},
        {"SLURM_STEP_ID", "0"}},
       0},
      {"PMIx", {{"PMIX_RANK", "5"}, {"SLURM_NTASKS", "8"}, {"PMIX_LOCAL_RANK", "1"}}, 0},
  };
  for (const Case& each : cases) {
    SCOPED_TRACE(each.source);
    const RankEnvironment env = read(each.variables);
    EXPECT_EQ(env.source, each.source);
    EXPECT_EQ(env.rank, 5);
    EXPECT_EQ(env.world_size, 8);
    EXPECT_EQ(env.local_rank, 1);
    EXPECT_EQ(env.local_world_size, each.local_world_size);
  }
}

TEST(RankEnvironment, TorchrunComesBeforeMpi) {
  const RankEnvironment env =
      read({{"OMPI_COMM_WORLD_RANK", "3"}, {"OMPI_COMM_WORLD_SIZE", "4"}, {"RANK", "1"}, {"WORLD_SIZE", "2"}});
  EXPECT_EQ(env.source, "torchrun");
  EXPECT_EQ(env.rank, 1);
}

TEST(RankEnvironment, WithoutLocalRankOneHostIsAssumed) {
  EXPECT_EQ(read({{"RANK", "2"}, {"WORLD_SIZE", "4"}}).local_rank, 2);
}

// Slurm sets these in a batch script too, which runs once.
TEST(RankEnvironment, ABatchScriptIsOneRank) {
  const RankEnvironment env = read({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "8"}, {"SLURM_JOB_ID", "77"}});
  EXPECT_EQ(env.world_size, 1);
}

TEST(RankEnvironment, ContradictionsNameTheirVariables) {
  EXPECT_EQ(error_of({{"RANK", "2"}, {"WORLD_SIZE", "2"}}), "RANK=2 is not below WORLD_SIZE=2");
  EXPECT_EQ(error_of({{"RANK", "-1"}, {"WORLD_SIZE", "2"}}), "RANK is '-1', expected a whole number >= 0");
  EXPECT_EQ(error_of({{"RANK", "1x"}, {"WORLD_SIZE", "2"}}), "RANK is '1x', expected a whole number >= 0");
  EXPECT_EQ(error_of({{"RANK", "99999999999"}, {"WORLD_SIZE", "2"}}),
            "RANK is '99999999999', expected a whole number >= 0");
  EXPECT_EQ(error_of({{"RANK", "0"}, {"WORLD_SIZE", "0"}}), "WORLD_SIZE is 0, expected at least 1");
  EXPECT_THAT(error_of({{"RANK", "1"}}), ::testing::StartsWith("RANK is set to 1 but WORLD_SIZE is not"));
  EXPECT_THAT(error_of({{"WORLD_SIZE", "4"}}), ::testing::StartsWith("WORLD_SIZE is 4 but RANK is not set"));
  EXPECT_EQ(error_of({{"RANK", "3"}, {"WORLD_SIZE", "4"}, {"LOCAL_RANK", "2"}, {"LOCAL_WORLD_SIZE", "2"}}),
            "LOCAL_RANK=2 is not below LOCAL_WORLD_SIZE=2");
  EXPECT_EQ(error_of({{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"LOCAL_RANK", "1"}, {"LOCAL_WORLD_SIZE", "4"}}),
            "LOCAL_WORLD_SIZE=4 is not between 1 and the number of ranks, 2");
  EXPECT_EQ(error_of({{"RANK", "1"}, {"WORLD_SIZE", "4"}, {"LOCAL_RANK", "2"}}), "LOCAL_RANK=2 is above RANK=1");
  EXPECT_THAT(error_of({{"RANK", "1"}, {"WORLD_SIZE", "4"}, {"LOCAL_WORLD_SIZE", "2"}}),
              ::testing::StartsWith("LOCAL_WORLD_SIZE=2 is set but LOCAL_RANK is not"));
}

}  // namespace
}  // namespace zeroshard
