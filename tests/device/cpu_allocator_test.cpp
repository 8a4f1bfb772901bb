#include "device/cpu_allocator.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <c10/core/CPUAllocator.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <malloc.h>

#include <cstdint>
#include <random>
#include <vector>

namespace zeroshard {
namespace {

class CpuAllocator : public ::testing::Test {
 protected:
  void SetUp() override {
    use_compact_cpu_allocator();
    if (c10::GetCPUAllocator() == c10::GetDefaultCPUAllocator()) GTEST_SKIP() << "malloc is not glibc's";
  }
};

TEST_F(CpuAllocator, TensorsAreAlignedAndHoldWhatIsWritten) {
  std::mt19937_64 random(1);
  std::vector<at::Tensor> tensors;
  for (int64_t i = 0; i < 300; ++i) tensors.push_back(at::full({1 + int64_t(random() % 3000)}, i, at::kLong));
  for (int64_t i = 0; i < 300; ++i) {
    const at::Tensor& tensor = tensors[size_t(i)];
    EXPECT_EQ(reinterpret_cast<uintptr_t>(tensor.data_ptr()) % 64, 0);
    EXPECT_TRUE(tensor.eq(i).all().item<bool>()) << i;
  }
}

TEST_F(CpuAllocator, EmptyTensorsHaveNoMemory) {
  EXPECT_EQ(at::empty({0}).data_ptr(), nullptr);
  EXPECT_EQ(c10::GetCPUAllocator()->allocate(0).get(), nullptr);
}

TEST_F(CpuAllocator, RawMemoryIsGivenBack) {
  c10::Allocator* const allocator = c10::GetCPUAllocator();
  void* const memory = allocator->raw_allocate(1000);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(memory) % 64, 0);
  allocator->raw_deallocate(memory);
}

TEST_F(CpuAllocator, WhatDoesNotFitIsAnErrorInTorchsWords) {
  for (const size_t bytes : {size_t{1} << 62, ~size_t{0}}) {
    EXPECT_THAT([&] { (void)c10::GetCPUAllocator()->allocate(bytes); },
                ::testing::ThrowsMessage<c10::Error>(::testing::HasSubstr(
                    "DefaultCPUAllocator: can't allocate memory: you tried to allocate " + std::to_string(bytes))));
  }
}

// Gradients of one size come and go while small tensors stay for a while.
TEST_F(CpuAllocator, AFreedTensorLeavesRoomForTheNextOfItsSize) {
  std::mt19937_64 random(1);
  std::vector<at::Tensor> gradients(16), others(400);
  const auto train = [&](int count) {
    for (int i = 0; i < count; ++i) {
      gradients[random() % gradients.size()] = at::empty({24 << 10});
      others[random() % others.size()] = at::empty({int64_t(random() % 40)});
    }
  };
  train(1000);
  const size_t before = ::mallinfo2().arena;
  train(100'000);
  EXPECT_LE(::mallinfo2().arena, before + (size_t{1} << 20));
}

}  // namespace
}  // namespace zeroshard
