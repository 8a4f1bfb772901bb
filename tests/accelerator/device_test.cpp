// The simulated accelerator itself.
#include "support/accelerator/device.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/ones.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/accelerator/memory.h"
#include "support/random_tensor.h"

namespace zeroshard::accelerator {
namespace {

using testing::random_tensor;
using ::testing::Test;

class Accelerator : public ::testing::TestWithParam<Schedule> {
 protected:
  void SetUp() override {
    start();
    Streams::get().set_schedule(GetParam(), /*seed=*/7);
    Streams::get().races().forget();
  }
  void TearDown() override { Streams::get().wait_for_device(0); }

  static std::vector<std::string> races() { return Streams::get().races().found(); }
  const at::Device device_ = device(0);
};

INSTANTIATE_TEST_SUITE_P(Schedules, Accelerator, ::testing::Values(Schedule::kEager, Schedule::kLate, Schedule::kLazy));

TEST_P(Accelerator, ComputesWhatTheCpuDoes) {
  const auto loss_and_gradients = [](at::Device device) {
    const at::Tensor weight = random_tensor({20, 48}, 1).to(device).set_requires_grad(true);
    const at::Tensor scale = random_tensor({48}, 2).to(device).set_requires_grad(true);
    const at::Tensor x = random_tensor({6, 48}, 3).to(device);
    const at::Tensor y = at::gelu(at::linear(at::layer_norm(x, {48}, scale), weight));
    const at::Tensor loss = at::mse_loss(y, random_tensor({6, 20}, 4).to(device));
    loss.backward();
    return std::vector{loss.detach().to(at::kCPU), weight.grad().to(at::kCPU), scale.grad().to(at::kCPU)};
  };
  const auto ours = loss_and_gradients(device_), expected = loss_and_gradients(at::kCPU);
  for (size_t i = 0; i < expected.size(); ++i) EXPECT_TRUE(ours[i].equal(expected[i])) << i;
  EXPECT_EQ(races(), std::vector<std::string>{});
  EXPECT_EQ(operators_that_waited(), std::vector<std::string>{});
}

TEST_P(Accelerator, FreshMemoryIsPoisoned) {
  const at::Tensor fresh = at::empty({100}, at::TensorOptions().device(device_).dtype(at::kByte)).to(at::kCPU);
  EXPECT_TRUE(fresh.eq(255).all().item<bool>());
}

TEST_P(Accelerator, AMissingWaitIsARace) {
  const at::Tensor a = at::ones({1000}, device_);
  const c10::Stream other = to_stream(Streams::get().make_stream(0));
  {
    const c10::StreamGuard guard(other);
    a.mul_(2);
  }
  EXPECT_EQ(races(), std::vector<std::string>{"write by aten::mul.out on stream 0:" + std::to_string(other.id()) +
                                              ", not ordered with the write by aten::fill_.Scalar on stream 0:0"});
}

TEST_P(Accelerator, AnEventOrdersStreams) {
  const at::Tensor a = at::ones({1000}, device_);
  c10::Event event(c10::DeviceType::PrivateUse1);
  const c10::Stream other = to_stream(Streams::get().make_stream(0));
  event.record(to_stream(current_stream(0)));
  {
    const c10::StreamGuard guard(other);
    event.block(other);
    a.mul_(2);
    event.record(other);
  }
  event.block(to_stream(current_stream(0)));
  EXPECT_EQ(a.sum().item<float>(), 2000);
  EXPECT_EQ(races(), std::vector<std::string>{});
}

TEST_P(Accelerator, FreedMemoryThatAnotherStreamReadsIsARace) {
  const c10::Stream other = to_stream(Streams::get().make_stream(0));
  const auto read_and_free = [&](bool records) {
    at::Tensor a = at::ones({1000}, device_);
    c10::Event event(c10::DeviceType::PrivateUse1);
    event.record(to_stream(current_stream(0)));
    const c10::StreamGuard guard(other);
    event.block(other);
    a.sum();
    if (records) a.record_stream(other);
  };
  read_and_free(/*records=*/true);
  EXPECT_EQ(races(), std::vector<std::string>{});
  read_and_free(/*records=*/false);
  ASSERT_EQ(races().size(), 1U);
  EXPECT_NE(races()[0].find("write by free on stream 0:0, not ordered with the read by aten::sum"), std::string::npos)
      << races()[0];
}

TEST_P(Accelerator, OnePieceOfABufferIsNotAnother) {
  const at::Tensor a = at::ones({1000}, device_);
  c10::Event event(c10::DeviceType::PrivateUse1);
  event.record(to_stream(current_stream(0)));
  const c10::Stream other = to_stream(Streams::get().make_stream(0));
  {
    const c10::StreamGuard guard(other);
    event.block(other);
    a.narrow(0, 0, 500).mul_(2);
  }
  a.narrow(0, 500, 500).mul_(3);
  EXPECT_EQ(races(), std::vector<std::string>{});
  a.narrow(0, 499, 2).mul_(3);
  EXPECT_THAT(races(), ::testing::SizeIs(1));
}

TEST_P(Accelerator, APinnedCopyIsNotThereAtOnce) {
  Streams& streams = Streams::get();
  const at::Tensor pinned = at::empty({8}, at::TensorOptions().dtype(at::kFloat).pinned_memory(true));
  ASSERT_TRUE(pinned.is_pinned());
  const at::Tensor a = at::full({8}, 3, at::TensorOptions().dtype(at::kFloat).device(device_));
  streams.wait_on_host(current_stream(0));
  streams.hold(current_stream(0));
  pinned.copy_(a, /*non_blocking=*/true);
  EXPECT_FALSE(pinned.eq(3).any().item<bool>());
  streams.release(current_stream(0));
  streams.wait_on_host(current_stream(0));
  EXPECT_TRUE(pinned.eq(3).all().item<bool>());
}

TEST_P(Accelerator, CountsWhatTheHostDoes) {
  Streams& streams = Streams::get();
  const at::Tensor a = at::ones({8}, device_);
  streams.reset_counts();
  a.mul_(2).add_(1);
  a.clone();
  EXPECT_EQ(streams.counts().launches, 2);
  EXPECT_EQ(streams.counts().copies, 1);
  EXPECT_EQ(streams.counts().host_waits, 0);
  a.to(at::kCPU);
  EXPECT_EQ(streams.counts().host_waits, 1);
}

TEST_P(Accelerator, WrongCallsThrowAtOnce) {
  const at::Tensor a = at::ones({8}, device_);
  EXPECT_THROW(a.add(at::ones({7}, device_)), c10::Error);
  EXPECT_THROW(a.add(at::ones({8})), c10::Error);
  EXPECT_THROW(a.add(at::ones({8}, device(1))), c10::Error);
}

TEST(AcceleratorDeathTest, AHostThatReadsDeviceMemoryDies) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        start();
        const at::Tensor a = at::ones({8}, device(0));
        Streams::get().wait_for_device(0);
        const volatile float value = static_cast<const float*>(a.const_data_ptr())[0];
        (void)value;
      },
      ::testing::KilledBySignal(SIGSEGV), "");
}

TEST_P(Accelerator, MemoryComesBack) {
  const int64_t before = allocated_bytes(0);
  {
    const at::Tensor a = at::ones({1000}, device_);
    EXPECT_EQ(allocated_bytes(0), before + 4096);
  }
  EXPECT_EQ(allocated_bytes(0), before);
}

}  // namespace
}  // namespace zeroshard::accelerator
