#include "precision/policy.h"

#include <gtest/gtest.h>

namespace zeroshard {
namespace {

TEST(PrecisionPolicy, Fp32NeedsNoMasterWeights) {
  const PrecisionPolicy policy = precision_policy(Config{});
  EXPECT_EQ(policy.compute, DType::kFloat32);
  EXPECT_FALSE(policy.master_weights);
  EXPECT_EQ(policy.wire, DType::kFloat32);
  EXPECT_EQ(policy.grad, DType::kFloat32);
}

TEST(PrecisionPolicy, SixteenBitsKeepMasterWeights) {
  Config config;
  config.compute_dtype = DType::kBFloat16;
  const PrecisionPolicy policy = precision_policy(config);
  EXPECT_TRUE(policy.master_weights);
  EXPECT_EQ(policy.wire, DType::kBFloat16);
  EXPECT_EQ(policy.grad, DType::kBFloat16);
}

TEST(PrecisionPolicy, AccumulationSumsInFp32) {
  Config config;
  config.compute_dtype = DType::kFloat16;
  config.grad_accumulation_steps = 2;
  EXPECT_EQ(precision_policy(config).grad, DType::kFloat32);
  EXPECT_EQ(precision_policy(config).wire, DType::kFloat16);
  config.grad_accum_dtype = DType::kFloat16;
  EXPECT_EQ(precision_policy(config).grad, DType::kFloat16);
}

TEST(PrecisionPolicy, ReducedGradientsFollowTheWire) {
  Config config;
  config.compute_dtype = DType::kBFloat16;
  config.communication_dtype = DType::kFloat32;
  EXPECT_EQ(precision_policy(config).wire, DType::kFloat32);
  EXPECT_EQ(precision_policy(config).grad, DType::kFloat32);
}

}  // namespace
}  // namespace zeroshard
