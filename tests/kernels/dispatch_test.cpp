#include <cstdlib>

#include "kernels/support.h"

namespace zeroshard::kernels::test {
namespace {

TEST(Dispatch, BestIsTheDefaultAndScalarIsAlwaysThere) {
  const auto tables = available_tables();
  ASSERT_FALSE(tables.empty());
  EXPECT_STREQ(tables.back()->name, "scalar");
  EXPECT_EQ(&choose_table(nullptr), tables.front());
  EXPECT_EQ(&choose_table(""), tables.front());
}

TEST(Dispatch, TakesEveryNameItOffers) {
  for (const KernelTable* table : available_tables()) EXPECT_EQ(&choose_table(table->name), table);
}

TEST(Dispatch, AnUnknownNameIsReportedAndNotUsed) {
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(&choose_table("avx1024"), available_tables().front());
  EXPECT_NE(::testing::internal::GetCapturedStderr().find("ZEROSHARD_ISA=avx1024"), std::string::npos);
}

TEST(Dispatch, ThePublicFunctionsUseTheChosenTable) {
  EXPECT_EQ(&active_table(), &choose_table(std::getenv("ZEROSHARD_ISA")));
  EXPECT_STREQ(instruction_set(), active_table().name);
  const float one = 1.5f;
  float twice = 0;
  pack(&one, DType::kFloat32, &twice, DType::kFloat32, 2.0f, 1);
  EXPECT_EQ(twice, 3.0f);
  EXPECT_EQ(sum_of_squares(&one, DType::kFloat32, 1).sum, 2.25);
}

}  // namespace
}  // namespace zeroshard::kernels::test
