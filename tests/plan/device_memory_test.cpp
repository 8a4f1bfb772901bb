#include "plan/device_memory.h"

#include <gtest/gtest.h>

#include "support/random.h"

namespace zeroshard {
namespace {

using testing::SeededRandom;
using testing::seeds;

UnitLayout unit(int64_t numel, int world_size, DType dtype = DType::kBFloat16) {
  return make_unit_layout("unit", {{{"weight"}, {numel}, dtype, /*requires_grad=*/true}}, world_size);
}

PlanOptions on_device(int stage, int world_size) {
  PlanOptions options;
  options.stage = stage;
  options.world_size = world_size;
  options.persistence_threshold = 0;
  return options;
}

int64_t peak_of(const std::vector<UnitLayout>& units, const PlanOptions& options) {
  std::vector<UnitOrigin> origins;
  for (const UnitLayout& unit : units) origins.push_back(origin_on_device(unit));
  return init_peak(units, plan_ledger(units, options), origins);
}

constexpr int64_t kDeviceNumel = 8 * kBlockNumel;

// A hundred units of 2n bytes. 64 ranks at stage 3 make 14n / 64 of each: the highest point is the first unit, when
// the whole model is still there.
TEST(InitPeak, OfManyRanksIsAtTheFirstUnit) {
  constexpr int64_t kLarge = 64 * kBlockNumel;
  const std::vector<UnitLayout> units(100, unit(kLarge, 64));
  EXPECT_EQ(peak_of(units, on_device(3, 64)), 100 * 2 * kLarge + 14 * kLarge / 64 + 4 * kLarge);
}

// One rank makes 14n of each unit and frees 2n: the end holds most, with gradients.
TEST(InitPeak, OfOneRankIsTheEnd) {
  const std::vector<UnitLayout> units(10, unit(kDeviceNumel, 1));
  EXPECT_EQ(peak_of(units, on_device(0, 1)), 10 * 16 * kDeviceNumel);
}

// The last of two makes the other's weights a small part: made 14n, then its own 2N, 14N and 4N in fp32.
TEST(InitPeak, OfALargeLastUnitIsThere) {
  const int64_t large = 64 * kDeviceNumel;
  const std::vector<UnitLayout> units{unit(kDeviceNumel, 1), unit(large, 1)};
  EXPECT_EQ(peak_of(units, on_device(0, 1)), 14 * kDeviceNumel + 20 * large);
}

TEST(InitPeak, UnitsThatAreReadHoldNothingBefore) {
  const std::vector<UnitLayout> units(3, unit(kDeviceNumel, 1));
  const std::vector<UnitOrigin> origins(3, UnitOrigin{0, /*is_staged=*/false});
  EXPECT_EQ(init_peak(units, plan_ledger(units, on_device(0, 1)), origins), 3 * 16 * kDeviceNumel);
}

// They are allocated before the first unit is made, where a model of many units needs most.
TEST(InitPeak, CountsTheCodesOfRefreshesFromTheBeginning) {
  std::vector<UnitLayout> units;
  for (int i = 0; i < 100; ++i)
    units.push_back(
        make_unit_layout("unit", {{{"weight"}, {8 * kDeviceNumel}, DType::kBFloat16, true}}, 32, /*parts=*/2));
  PlanOptions options = on_device(3, 32);
  options.parts = options.replicas = 2;
  const int64_t plain = peak_of(units, options);
  options.quantized_weights = true;
  const int64_t codes = plan_ledger(units, options).refresh_codes.bytes();
  EXPECT_GT(codes, 0);
  EXPECT_EQ(peak_of(units, options), plain + codes);
}

TEST(InitPeak, IsAtLeastTheModelAndAtLeastTheRun) {
  for (const uint64_t seed : seeds(200)) {
    SCOPED_TRACE(seed);
    SeededRandom random(seed);
    const int world_size = int(random.between(1, 9)), stage = int(random.between(0, 3));
    std::vector<UnitLayout> units;
    int64_t model = 0;
    for (int64_t i = random.between(1, 6); i > 0; --i) {
      units.push_back(unit(random.between(1, 20'000), world_size));
      model += origin_on_device(units.back()).device_bytes;
    }
    const PlanOptions options = on_device(stage, world_size);
    const int64_t peak = peak_of(units, options), held = plan_ledger(units, options).bytes.total();
    EXPECT_GE(peak, std::max(model, held));
    EXPECT_LE(peak, model + held + init_staging(*std::max_element(units.begin(), units.end(), [](auto& a, auto& b) {
                      return init_staging(a) < init_staging(b);
                    })));
  }
}

TEST(StepTemporaries, AreOfOneBucketAtMost) {
  const std::vector<UnitLayout> small{unit(kDeviceNumel, 4), unit(2 * kDeviceNumel, 4), unit(kDeviceNumel, 4)};
  EXPECT_EQ(step_temporaries(small), 2 * 2 * kDeviceNumel);  // gradients of the second
  EXPECT_EQ(step_temporaries(std::vector{unit(1, 1, DType::kFloat32)}), kSquaresBytes);
  EXPECT_EQ(step_temporaries(std::vector{unit(int64_t{1} << 30, 4)}), kWaitingBytes);
  EXPECT_EQ(plan_ledger(small, on_device(3, 4)).bytes.at(Category::kTemporaries, Tier::kDevice), 0);
}

}  // namespace
}  // namespace zeroshard
