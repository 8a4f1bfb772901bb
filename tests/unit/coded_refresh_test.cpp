#include "unit/coded_refresh.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>

#include <limits>

#include "comm/local_comm.h"
#include "layout/shard_layout.h"
#include "support/comm_world.h"
#include "support/random_tensor.h"

namespace zeroshard {
namespace {

constexpr int64_t kPart = 3 * kBlockNumel;

// Refreshes the shard `values`, of which each rank has its part. Returns each rank's shard.
std::vector<at::Tensor> refreshed(int ranks, const at::Tensor& values) {
  auto world = make_local_world(ranks);
  std::vector<at::Tensor> shards(static_cast<size_t>(ranks));
  const auto errors = testing::run_threads(ranks, [&](int rank) {
    Ledger ledger;
    CodedRefresh refresh(*world[size_t(rank)], {replica_sum_bytes(values.numel(), ranks, /*is_coded=*/true), 1, 1},
                         at::kCPU, ledger);
    at::Tensor& shard = shards[size_t(rank)];
    shard = at::zeros_like(values);
    shard.slice(0, rank * kPart, (rank + 1) * kPart).copy_(values.slice(0, rank * kPart, (rank + 1) * kPart));
    for (int step = 0; step < 2; ++step) {  // what was decoded has the same codes
      refresh.begin({shard}, "unit");
      refresh.finish();
    }
    world[size_t(rank)]->barrier("end");
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
  return shards;
}

TEST(CodedRefresh, AllRanksDecodeTheSameWithinTheBound) {
  for (const at::ScalarType type : {at::kBFloat16, at::kHalf}) {
    for (const int ranks : {2, 3}) {
      at::Tensor values = testing::random_tensor({kPart * ranks}, /*seed=*/7, 2.F).to(type);
      values.slice(0, 0, 2 * kScaledNumel).zero_();
      values.slice(0, kScaledNumel, kScaledNumel + 9).fill_(1e-6);
      const std::vector<at::Tensor> shards = refreshed(ranks, values);
      for (const at::Tensor& shard : shards) EXPECT_TRUE(shard.equal(shards[0]));
      const at::Tensor exact = values.to(at::kFloat).view({-1, kScaledNumel}), largest = exact.abs().amax({1}, true);
      const at::Tensor error = (shards[0].to(at::kFloat).view({-1, kScaledNumel}) - exact).abs();
      const float rounding = type == at::kHalf ? 0x1p-11F : 0x1p-9F;  // of the decoded value to 16 bits
      EXPECT_TRUE(error.le(largest.mul(1 / 254.F + rounding).add(1e-7)).all().item<bool>()) << type;
      EXPECT_GT(error.max().item<float>(), 0);
    }
  }
}

TEST(CodedRefresh, BlocksThatAreNotFiniteShowItOnAllRanks) {
  for (const double bad : {std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()}) {
    at::Tensor values = at::ones({2 * kPart}, at::kBFloat16);
    values[kPart + 300] = bad;
    for (const at::Tensor& shard : refreshed(2, values)) {
      EXPECT_TRUE(shard.slice(0, kPart + 256, kPart + 512).isnan().all().item<bool>());
      EXPECT_TRUE(at::cat({shard.slice(0, 0, kPart + 256), shard.slice(0, kPart + 512)}).eq(1).all().item<bool>());
    }
  }
}

}  // namespace
}  // namespace zeroshard
