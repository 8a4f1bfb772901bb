// The checks that kernels pass on a card, on the simulated device.
#include "support/accelerator/kernels.h"
#include "device/kernels_on_device.h"
#include "support/accelerator/device.h"
#include "support/accelerator/streams.h"

namespace zeroshard::kernels::test {
namespace {

class SimulatedKernels : public ::testing::Test {
 protected:
  void SetUp() override {
    accelerator::start();
    accelerator::use_own_kernels(true);
    accelerator::Streams::get().races().forget();
  }
  void TearDown() override { EXPECT_EQ(accelerator::Streams::get().races().found(), std::vector<std::string>{}); }
  const DeviceKernels& kernels() const { return *device_kernels(c10::kPrivateUse1); }
  c10::Device device() const { return accelerator::device(0); }
};

TEST_F(SimulatedKernels, Pack) {
  expect_packs(kernels(), device());
}
TEST_F(SimulatedKernels, PackManyTensorsAtOnce) {
  expect_packs_of_many(kernels(), device());
}
TEST_F(SimulatedKernels, SumInOrder) {
  expect_sums(kernels(), device());
}
TEST_F(SimulatedKernels, Update) {
  expect_updates_of_all_optimizers(kernels(), device());
}
TEST_F(SimulatedKernels, AddSquaresExactly) {
  expect_squares(kernels(), device());
}
TEST_F(SimulatedKernels, TakeWhatWasWritten) {
  expect_takes_what_was_written(kernels(), device());
}
TEST_F(SimulatedKernels, ChecksumsOfAnyMemory) {
  expect_checksums(kernels(), device());
}
TEST_F(SimulatedKernels, CodesOfMoments) {
  expect_codes(kernels(), device());
}

}  // namespace
}  // namespace zeroshard::kernels::test
