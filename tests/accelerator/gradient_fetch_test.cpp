// Gradients of a device that the host works with, piece by piece.
#include "group/gradient_fetch.h"

#include <ATen/ops/arange.h>
#include <gmock/gmock.h>

#include <stdexcept>
#include <tuple>

#include "accelerator/support.h"

namespace zeroshard::accelerator {
namespace {

using ::testing::IsEmpty;

constexpr int64_t kPiece = 64;

class GradientFetchTest : public ::testing::TestWithParam<std::tuple<Schedule, int>> {
 protected:
  void SetUp() override { begin_on_devices(std::get<0>(GetParam()), /*seed=*/11); }
  void TearDown() override {
    end_on_devices();
    EXPECT_THAT(Streams::get().races().found(), IsEmpty());
  }
  static Mover::Slots slots() {
    return {.bytes = kPiece * int64_t{sizeof(float)}, .count = std::get<1>(GetParam()), .piece_numel = kPiece};
  }
  // Made by the current stream, which may be behind.
  static at::Tensor gradients(int64_t numel, double first) {
    return at::arange(numel, at::kFloat).add(first).to(device(0)).mul(2);
  }
  static at::Tensor expected(Range range, double first) {
    return at::arange(range.begin, range.end, at::kFloat).add(first).mul(2);
  }
  // Everything that was given to the device is done before the values are looked at: also what should not be yet.
  static void expect_lent(GradientFetch& fetch, const at::Tensor& grads, Range range, double first) {
    int64_t next = range.begin;
    fetch.lend(grads, range, [&](Range part, const at::Tensor& values) {
      EXPECT_EQ(part.begin, next);
      next = part.end;
      EXPECT_LE(part.size(), kPiece);
      EXPECT_TRUE(values.is_cpu());
      EXPECT_TRUE(values.equal(expected(part, first))) << part.begin << " to " << part.end;
      Streams::get().wait_for_device(0);
      EXPECT_TRUE(values.equal(expected(part, first))) << part.begin << " to " << part.end;
    });
    EXPECT_EQ(next, range.end);
  }
};

INSTANTIATE_TEST_SUITE_P(Schedules, GradientFetchTest,
                         ::testing::Combine(::testing::Values(Schedule::kEager, Schedule::kLate, Schedule::kLazy),
                                            ::testing::Values(1, 2, 3)));

TEST_P(GradientFetchTest, LendsWhatWasAnnouncedAndWhatWasNot) {
  Ledger ledger;
  {
    GradientFetch fetch(device(0), slots(), ledger);
    EXPECT_EQ(ledger.current().at(Category::kPinned, Tier::kHost), slots().bytes * slots().count);
    const at::Tensor one = gradients(1000, 1), other = gradients(300, 0.5);
    for (int step = 0; step < 3; ++step) {
      for (const Range range : {Range{0, 300}, Range{300, 500}, Range{700, 1000}}) fetch.will_need(one, range);
      fetch.will_need(other, {10, 11});
      fetch.will_need(other, {20, 300});
      // Neighbours that were announced one by one are lent in other parts.
      for (const Range range : {Range{0, 130}, Range{130, 500}, Range{700, 1000}}) expect_lent(fetch, one, range, 1);
      expect_lent(fetch, other, {10, 11}, 0.5);
      expect_lent(fetch, other, {20, 300}, 0.5);
      expect_lent(fetch, one, {5, 5}, 1);
      expect_lent(fetch, one, {100, 400}, 1);  // nobody said so
    }
  }
  EXPECT_EQ(ledger.current().at(Category::kPinned, Tier::kHost), 0);
}

TEST_P(GradientFetchTest, OtherOrdersThanAnnouncedCostTimeAlone) {
  Ledger ledger;
  GradientFetch fetch(device(0), slots(), ledger);
  const at::Tensor one = gradients(400, 1), other = gradients(400, 3);
  fetch.will_need(one, {0, 400});
  fetch.will_need(other, {0, 400});
  expect_lent(fetch, other, {100, 400}, 3);
  expect_lent(fetch, one, {0, 400}, 1);
  expect_lent(fetch, one, {0, 400}, 1);
}

// Gradients of the next pass come where those that were announced lay.
TEST_P(GradientFetchTest, EndsBeforeTheGradientsAreWrittenAgain) {
  Ledger ledger;
  const at::Tensor grads = gradients(400, 1);  // goes last: the fetch waits for its copies
  GradientFetch fetch(device(0), slots(), ledger);
  for (const bool fails : {false, true}) {
    fetch.will_need(grads, {0, 400});
    if (fails) {
      EXPECT_THROW(fetch.lend(grads, {0, 400}, [](Range, const at::Tensor&) { throw std::runtime_error("a test"); }),
                   std::runtime_error);
    }
    fetch.end();
    grads.copy_(gradients(400, 1).add(2));
    expect_lent(fetch, grads, {0, 400}, 2);
    grads.copy_(gradients(400, 1));
  }
  fetch.will_need(grads, {0, 400});  // and so it goes
}

}  // namespace
}  // namespace zeroshard::accelerator
