#include "device/mover.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <utility>

#include "accelerator/support.h"

namespace zeroshard::accelerator {
namespace {

using ::testing::IsEmpty;

constexpr int64_t kPiece = 64, kNumel = 1000;

class MoverTest : public ::testing::TestWithParam<std::tuple<Schedule, int>> {
 protected:
  void SetUp() override { begin_on_devices(std::get<0>(GetParam()), /*seed=*/12); }
  void TearDown() override {
    end_on_devices();
    EXPECT_THAT(Streams::get().races().found(), IsEmpty());
  }
  static Mover::Slots slots(bool on_host) {
    return {.bytes = kPiece * int64_t{sizeof(float)},
            .count = std::get<1>(GetParam()),
            .piece_numel = kPiece,
            .on_host = on_host,
            .category = on_host ? Category::kPinned : Category::kGatherRing};
  }
  static at::Tensor numbers(Range range, float factor) {
    return at::arange(range.begin, range.end, at::kFloat).mul(factor);
  }
};

INSTANTIATE_TEST_SUITE_P(Schedules, MoverTest,
                         ::testing::Combine(::testing::Values(Schedule::kEager, Schedule::kLate, Schedule::kLazy),
                                            ::testing::Values(2, 3)));

TEST_P(MoverTest, LendsPiecesOfADeviceToTheHost) {
  Ledger ledger;
  {
    Mover mover(device(0), slots(/*on_host=*/true), ledger);
    EXPECT_EQ(ledger.current().at(Category::kPinned, Tier::kHost), slots(true).bytes * slots(true).count);
    const at::Tensor far = numbers({0, kNumel}, 1).to(device(0)).mul(2);
    for (const float factor : {2.F, 6.F}) {
      mover.follow();
      int64_t next = 0;
      mover.lend_on_host(far, at::Tensor(), {.reads = true, .writes = true}, [&](Range piece, const at::Tensor& near) {
        EXPECT_EQ(piece.begin, std::exchange(next, piece.end));
        EXPECT_TRUE(near.equal(numbers(piece, factor))) << piece.begin;
        near.mul_(3);
      });
      EXPECT_EQ(next, kNumel);
      c10::Event sent = mover.record();
      current_stream_waits(sent, device(0));
    }
    EXPECT_TRUE(far.cpu().equal(numbers({0, kNumel}, 18)));
  }
  EXPECT_EQ(ledger.current().at(Category::kPinned, Tier::kHost), 0);
}

TEST_P(MoverTest, LendsPiecesOfTheHostToADevice) {
  Ledger ledger;
  const at::Tensor far = at::empty({kNumel}, at::TensorOptions().dtype(at::kFloat).pinned_memory(true));
  far.copy_(numbers({0, kNumel}, 1));
  for (const bool waits : {false, true}) {
    Mover mover(device(0), slots(/*on_host=*/false), ledger);
    for (int64_t at = 0; at < kNumel; at += kPiece) {
      const at::Tensor piece = far.slice(0, at, std::min(at + kPiece, kNumel));
      mover.lend_on_device(piece, {.reads = true, .writes = true}, waits, [](const at::Tensor& near) { near.mul_(2); });
    }
    mover.wait();
    EXPECT_TRUE(far.equal(numbers({0, kNumel}, waits ? 4 : 2)));
  }
}

}  // namespace
}  // namespace zeroshard::accelerator
