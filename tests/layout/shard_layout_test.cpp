#include "layout/shard_layout.h"

#include <gtest/gtest.h>

#include <limits>

#include "layout/unit_layout.h"
#include "support/random.h"
#include "zeroshard/error.h"

namespace zeroshard {
namespace {

using testing::SeededRandom;
using testing::seeds;

TEST(ShardLayout, PadsOnlyTheTailToWholeBlocks) {
  const ShardLayout layout(std::vector<int64_t>{3, 0, 2050}, /*world_size=*/2);
  EXPECT_EQ(layout.numel(), 2053);
  EXPECT_EQ(layout.shard_numel(), 2048);
  EXPECT_EQ(layout.padded_numel(), 4096);
  EXPECT_EQ(layout.param(2), (Range{3, 2053}));
  EXPECT_EQ(layout.owned(2, 0), (Range{3, 2048}));
  EXPECT_EQ(layout.owned(2, 1), (Range{2048, 2053}));
  EXPECT_EQ(layout.owned(0, 1), (Range{0, 0}));
}

TEST(ShardLayout, OneElementMoreThanFullShardsNeedsAnotherBlock) {
  for (const int world_size : {1, 2, 3, 7}) {
    const int64_t full = kBlockNumel * world_size;
    EXPECT_EQ(ShardLayout(std::vector<int64_t>{full}, world_size).shard_numel(), kBlockNumel);
    EXPECT_EQ(ShardLayout(std::vector<int64_t>{full + 1}, world_size).shard_numel(), 2 * kBlockNumel);
  }
}

TEST(ShardLayout, EveryElementHasOneOwner) {
  for (const uint64_t seed : seeds(500)) {
    SeededRandom random(seed);
    std::vector<int64_t> numels(random() % 20);
    for (int64_t& numel : numels) numel = int64_t(random() % 3000);
    const int world_size = 1 + int(random() % 9);
    const ShardLayout layout(numels, world_size);
    EXPECT_EQ(layout.shard_numel() % kBlockNumel, 0);
    EXPECT_GE(layout.padded_numel(), layout.numel());
    EXPECT_LT(layout.padded_numel() - layout.numel(), (kBlockNumel + 1) * world_size);
    for (size_t i = 0; i < numels.size(); ++i) {
      EXPECT_EQ(layout.param(i).size(), numels[i]);
      int64_t next = layout.param(i).begin;
      for (int rank = 0; rank < world_size; ++rank) {
        const Range owned = layout.owned(i, rank);
        if (owned.size() == 0) continue;
        EXPECT_EQ(owned.begin, next);
        EXPECT_GE(owned.begin, layout.shard(rank).begin);
        EXPECT_LE(owned.end, layout.shard(rank).end);
        next = owned.end;
      }
      EXPECT_EQ(next, layout.param(i).end);
    }
  }
}

TEST(ShardLayout, AlignedParametersHaveBlocksOfTheirOwnOnOneRank) {
  for (const uint64_t seed : seeds(300)) {
    SeededRandom random(seed);
    std::vector<int64_t> numels(1 + random() % 20);
    for (int64_t& numel : numels) numel = int64_t(random() % 9000);
    const int world_size = 1 + int(random() % 9);
    const ShardLayout layout(numels, world_size, kScaledNumel);
    const ShardLayout alone(numels, 1, kScaledNumel);
    int64_t next = 0;
    for (size_t i = 0; i < numels.size(); ++i) {
      const Range param = layout.param(i);
      EXPECT_EQ(param, alone.param(i));
      EXPECT_EQ(param.size(), numels[i]);
      EXPECT_EQ(param.begin % kScaledNumel, 0);
      EXPECT_TRUE(param.begin >= next && param.begin < next + kScaledNumel);
      for (int rank = 0; rank < world_size; ++rank) {
        const Range owned = layout.owned(i, rank);
        if (owned.size() == 0) continue;
        EXPECT_EQ(owned.begin % kScaledNumel, 0);
        EXPECT_TRUE(owned.end % kScaledNumel == 0 || owned.end == param.end);
      }
      const Range padding = layout.padding_behind(i);
      EXPECT_EQ(padding.begin, param.end);
      EXPECT_EQ(padding.end, i + 1 < numels.size() ? layout.param(i + 1).begin : layout.padded_numel());
      next = param.end;
    }
    EXPECT_EQ(layout.numel(), next);
  }
}

TEST(ShardLayout, PositionsDoNotDependOnTheWorldSize) {
  const std::vector<int64_t> numels = {5, 4000, 1, 999};
  for (const int world_size : {1, 2, 3, 7}) {
    for (size_t i = 0; i < numels.size(); ++i) {
      EXPECT_EQ(ShardLayout(numels, world_size).param(i), ShardLayout(numels, 1).param(i));
    }
  }
}

TEST(ShardLayout, RefusesWhatCannotBeLaidOut) {
  EXPECT_THROW(ShardLayout(std::vector<int64_t>{-1}, 1), ValueError);
  EXPECT_THROW(ShardLayout(std::vector<int64_t>{1}, 0), ValueError);
  const int64_t huge = std::numeric_limits<int64_t>::max() / 3;
  EXPECT_THROW(ShardLayout(std::vector<int64_t>({huge, huge}), 2), ValueError);
  EXPECT_EQ(ShardLayout(std::vector<int64_t>{}, 3).padded_numel(), 0);
}

TEST(UnitLayout, GroupsByDtypeTrainableFirst) {
  const UnitLayout unit = make_unit_layout("u",
                                           {{{"a"}, {2, 3}, DType::kBFloat16, true},
                                            {{"frozen"}, {5}, DType::kFloat32, false},
                                            {{"b"}, {}, DType::kFloat32, true},
                                            {{"index"}, {4}, DType::kOther8, false},
                                            {{"c"}, {7}, DType::kBFloat16, true}},
                                           /*world_size=*/1);
  ASSERT_EQ(unit.groups.size(), 4U);
  EXPECT_EQ(unit.groups[0].dtype, DType::kFloat32);
  EXPECT_EQ(unit.groups[0].params, (std::vector<size_t>{2}));
  EXPECT_EQ(unit.groups[1].params, (std::vector<size_t>{0, 4}));
  EXPECT_TRUE(unit.groups[0].requires_grad && unit.groups[1].requires_grad);
  EXPECT_FALSE(unit.groups[2].requires_grad || unit.groups[3].requires_grad);
  EXPECT_EQ(unit.numel(), 6 + 5 + 1 + 4 + 7);
  EXPECT_EQ(unit.full_bytes(), 1024 * (4 + 2 + 4 + 8));
  EXPECT_EQ(unit.shard_bytes(), unit.full_bytes());
}

TEST(UnitLayout, ParametersWithCodedMomentsHaveAnAlignedGroup) {
  const std::vector<ParamSpec> params{{{"bias"}, {5}, DType::kFloat32, true},
                                      {{"a"}, {5000}, DType::kFloat32, true, false, /*is_coded=*/true},
                                      {{"b"}, {70, 70}, DType::kFloat32, true, false, /*is_coded=*/true},
                                      {{"frozen"}, {5000}, DType::kFloat32, false, false, /*is_coded=*/true}};
  const UnitLayout unit = make_unit_layout("u", params, /*world_size=*/2);
  ASSERT_EQ(unit.groups.size(), 3U);
  EXPECT_FALSE(unit.groups[0].is_coded || unit.groups[2].is_coded);
  EXPECT_TRUE(unit.groups[1].is_coded);
  EXPECT_EQ(unit.groups[1].params, (std::vector<size_t>{1, 2}));
  EXPECT_EQ(unit.groups[1].layout.param(1).begin, 5120);
  EXPECT_EQ(unit.numel(), 5 + 5000 + 4900 + 5000);
}

TEST(UnitLayout, IntegersCannotBeTrained) {
  EXPECT_THROW(make_unit_layout("u", {{{"index"}, {4}, DType::kOther8, true}}, 1), ValueError);
}

}  // namespace
}  // namespace zeroshard
