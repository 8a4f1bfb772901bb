// The kernels of src/device/kernels.cu on a card have the bits of the CPU's.
#include <c10/cuda/CUDAFunctions.h>

#include "device/kernels_on_device.h"

namespace zeroshard::kernels::test {
namespace {

class CudaKernels : public ::testing::Test {
 protected:
  void SetUp() override {
    if (c10::cuda::device_count() == 0) GTEST_SKIP() << "needs a GPU";
    ASSERT_NE(device_kernels(c10::kCUDA), nullptr) << "built without nvcc";
  }
  const DeviceKernels& kernels() const { return *device_kernels(c10::kCUDA); }
  c10::Device device() const { return {c10::kCUDA, 0}; }
};

TEST_F(CudaKernels, Pack) {
  expect_packs(kernels(), device());
}
TEST_F(CudaKernels, PackManyTensorsAtOnce) {
  expect_packs_of_many(kernels(), device());
}
TEST_F(CudaKernels, SumInOrder) {
  expect_sums(kernels(), device());
}
TEST_F(CudaKernels, Update) {
  expect_updates_of_all_optimizers(kernels(), device());
}
TEST_F(CudaKernels, AddSquaresExactly) {
  expect_squares(kernels(), device());
}
TEST_F(CudaKernels, TakeWhatWasWritten) {
  expect_takes_what_was_written(kernels(), device());
}
TEST_F(CudaKernels, ChecksumsOfAnyMemory) {
  expect_checksums(kernels(), device());
}
TEST_F(CudaKernels, CodesOfMoments) {
  expect_codes(kernels(), device());
}

}  // namespace
}  // namespace zeroshard::kernels::test
