#include "device/cpu_allocator.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <c10/core/CPUAllocator.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <malloc.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "support/random.h"

namespace zeroshard {
namespace {

using testing::SeededRandom;

class CpuAllocator : public ::testing::Test {
 protected:
  void SetUp() override {
    use_compact_cpu_allocator();
    if (c10::GetCPUAllocator() == c10::GetDefaultCPUAllocator()) GTEST_SKIP() << "malloc is not glibc's";
  }
};

TEST_F(CpuAllocator, TensorsAreAlignedAndHoldWhatIsWritten) {
  SeededRandom random(1);
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
  SeededRandom random(1);
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

// Bytes of this process in memory that are of no file.
int64_t resident_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    if (word != "RssAnon:") continue;
    int64_t kilobytes = 0;
    status >> kilobytes;
    return kilobytes << 10;
  }
  return -1;
}

// As a training step: activations that grow layer by layer, then gradients; and small tensors that stay for a while.
TEST_F(CpuAllocator, LargeTensorsLeaveNothingBetweenSmallOnes) {
  SeededRandom random(1);
  std::vector<at::Tensor> small(4000);
  int64_t used = 0, peak = 0;
  const auto take = [&](std::vector<at::Tensor>& tensors, int64_t kilobytes) {
    tensors.push_back(at::zeros({kilobytes << 10}, at::kByte));
    for (int i = 0; i < 20; ++i) small[random() % small.size()] = at::zeros({int64_t(random() % 1000)});
    used += kilobytes << 10;
    peak = std::max(peak, used);
  };
  const int64_t before = resident_bytes();
  for (int step = 0; step < 5; ++step) {
    std::vector<at::Tensor> activations;
    for (int layer = 0; layer < 24; ++layer) take(activations, 1024 + int64_t(random() % 3072));
    for (; !activations.empty(); activations.pop_back()) {
      std::vector<at::Tensor> gradients;
      for (int i = 0; i < 3; ++i) take(gradients, 1024 + int64_t(random() % 3072));
      for (const at::Tensor& gradient : gradients) used -= gradient.numel();
      used -= activations.back().numel();
    }
    end_cpu_memory_step();
    EXPECT_LE(resident_bytes() - before, peak + peak / 8 + (int64_t{8} << 20)) << step;
  }
  trim_cpu_memory();
  EXPECT_LE(resident_bytes() - before, int64_t{16} << 20);  // a heap keeps 80
}

TEST_F(CpuAllocator, WhatIsKeptGoesBeforeASmallTensorDoesNotFit) {
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    ::alarm(30);
    { const at::Tensor large = at::empty({int64_t{128} << 20}, at::kByte); }
    if (kept_cpu_memory() < int64_t{128} << 20) ::_exit(2);
    std::ifstream file("/proc/self/statm");
    rlim_t pages = 0;
    file >> pages;
    const rlim_t limit = pages * rlim_t(::sysconf(_SC_PAGESIZE)) + (rlim_t{16} << 20);
    const rlimit address_space{limit, limit};
    ::setrlimit(RLIMIT_AS, &address_space);
    std::vector<at::Tensor> small;
    try {
      while (small.size() < 100) small.push_back(at::empty({900 << 10}, at::kByte));
    } catch (const c10::Error&) {
      ::_exit(1);
    }
    ::_exit(0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(WEXITSTATUS(status), 0);
  EXPECT_TRUE(WIFEXITED(status));
}

TEST_F(CpuAllocator, AForkedChildCanAllocate) {
  std::atomic<bool> stop = false;
  std::vector<std::thread> threads;
  for (int i = 0; i < 2; ++i) {
    threads.emplace_back([&] {
      while (!stop) (void)c10::GetCPUAllocator()->allocate(size_t{2} << 20);
    });
  }
  const c10::DataPtr inherited = c10::GetCPUAllocator()->allocate(size_t{3} << 20);
  for (int i = 0; i < 200; ++i) {
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      ::alarm(30);
      (void)c10::GetCPUAllocator()->allocate(size_t{2} << 20);
      ::_exit(0);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFEXITED(status)) << "signal " << WTERMSIG(status) << " in child " << i;
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace zeroshard
