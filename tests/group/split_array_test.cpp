#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "store/array.h"
#include "support/piecewise_states.h"
#include "support/random.h"
#include "support/random_tensor.h"

namespace zeroshard {
namespace {

using Access = Array::Access;
using testing::SeededRandom;

constexpr int64_t kSplitNumel = 100;

StateTensors random_states(int64_t numel, bool has_master, int slots, uint64_t seed) {
  StateTensors states;
  if (has_master) states.master = testing::random_tensor({numel}, seed);
  for (int slot = 0; slot < slots; ++slot)
    states.moments.push_back(testing::random_tensor({numel}, seed + 1 + uint64_t(slot)));
  return states;
}

// States in memory that note what they are told.
class Told final : public Storage {
 public:
  Told(std::vector<Range>& ranges, std::vector<int>& ones) : ranges_(ranges), ones_(ones) {}
  void lend(Range range, std::optional<int> column, Access, const Use&) override {
    ranges_.push_back(range);
    if (column) ones_.push_back(*column);
  }
  std::unique_ptr<ArrayReader> reader(int) override { return nullptr; }
  int64_t numel() const override { return 0; }
  at::ScalarType type(int) const override { return at::kFloat; }
  void will_need(Range range) override { ranges_.push_back(range); }
  void read_on(const SideStream&) override {}

 private:
  std::vector<Range>& ranges_;
  std::vector<int>& ones_;
};

// Whatever is borrowed, they look like states that lie in one place.
TEST(SplitArray, LookLikeStatesInOnePlace) {
  for (const uint64_t seed : testing::seeds(200)) {
    SeededRandom random(seed);
    const bool has_master = random.between(0, 1) == 1;
    const int slots = random.between(has_master ? 0 : 1, 2), border = random.between(0, int(kSplitNumel));
    StateTensors expected = random_states(kSplitNumel, has_master, slots, seed * 10);
    const auto part_of = [&](int64_t begin, int64_t end, int64_t piece) {
      StateTensors copy;
      if (has_master) copy.master = expected.master.slice(0, begin, end).clone();
      for (const at::Tensor& moment : expected.moments) copy.moments.push_back(moment.slice(0, begin, end).clone());
      return std::make_unique<testing::PiecewiseStorage>(copy, piece);
    };
    Array split(part_of(0, border, 7),
                Array::Options{.has_master = has_master, .border = border, .rest = part_of(border, kSplitNumel, 11)});
    EXPECT_EQ(split.in_memory(), nullptr);
    for (int call = 0; call < 20; ++call) {
      const int begin = random.between(0, int(kSplitNumel)), end = random.between(begin, int(kSplitNumel));
      const Access access = random.between(0, 1) == 0 ? Access::kRead : Access::kModify;
      int64_t next = begin;
      const auto visit = [&](const at::Tensor& lent, const at::Tensor& known, Range part) {
        const at::Tensor own = known.slice(0, part.begin, part.end);
        EXPECT_TRUE(lent.equal(own)) << part.begin << " to " << part.end << ", border " << border;
        if (access == Access::kRead) return;
        const float value = float(random.fraction());
        lent.fill_(value);
        own.fill_(value);
      };
      const auto follow = [&](Range part) {
        EXPECT_EQ(part.begin, next);
        next = part.end;
      };
      const int state = random.between(has_master ? kMasterWeights : 0, slots - 1);
      if (random.between(0, 1) == 0) {
        split.lend_one({begin, end}, state, access, [&](Range part, const at::Tensor& lent) {
          follow(part);
          visit(lent, expected.at(state), part);
        });
      } else {
        split.lend({begin, end}, access, [&](Range part, const StateTensors& lent) {
          follow(part);
          ASSERT_EQ(lent.moments.size(), size_t(slots));
          if (has_master) visit(lent.master, expected.master, part);
          for (int slot = 0; slot < slots; ++slot) visit(lent.at(slot), expected.at(slot), part);
        });
      }
      EXPECT_EQ(next, end);
    }
  }
}

// No more is asked of either place than lies there, and of one state alone where one is borrowed.
TEST(SplitArray, AskEachPlaceForWhatItHas) {
  std::vector<Range> first, rest;
  std::vector<int> first_ones, rest_ones;
  Array split(std::make_unique<Told>(first, first_ones),
              Array::Options{.border = 40, .rest = std::make_unique<Told>(rest, rest_ones)});
  const auto expect = [&](const std::vector<Range>& in_first, const std::vector<Range>& in_rest) {
    EXPECT_EQ(std::exchange(first, {}), in_first);
    EXPECT_EQ(std::exchange(rest, {}), in_rest);
  };
  const auto nothing = [](Range, const StateTensors&) {};
  split.lend({10, 40}, Access::kRead, nothing);
  expect({{10, 40}}, {});
  split.lend({40, 50}, Access::kRead, nothing);
  expect({}, {{0, 10}});
  split.lend({39, 41}, Access::kModify, nothing);
  expect({{39, 40}}, {{0, 1}});
  split.lend({20, 20}, Access::kRead, nothing);
  expect({}, {});
  split.lend_one({0, 100}, 1, Access::kOverwrite, [](Range, const at::Tensor&) {});
  expect({{0, 40}}, {{0, 60}});
  EXPECT_EQ(first_ones, std::vector<int>{1});
  EXPECT_EQ(rest_ones, std::vector<int>{1});
  split.will_need({30, 45});
  expect({{30, 40}}, {{0, 5}});
}

// What a borrower throws passes through, wherever the part lies.
TEST(SplitArray, AnErrorOfABorrowerPassesThrough) {
  const auto made = [](int64_t numel) { return states_in_memory(random_states(numel, true, 2, 1)); };
  Array split(made(40), Array::Options{.has_master = true, .border = 40, .rest = made(60)});
  for (const int64_t at : {0, 40}) {
    EXPECT_THROW(split.lend({0, kSplitNumel}, Access::kModify,
                            [&](Range part, const StateTensors&) {
                              if (part.begin == at) throw std::runtime_error("of the borrower");
                            }),
                 std::runtime_error);
  }
  int64_t lent = 0;
  split.lend({0, kSplitNumel}, Access::kRead, [&](Range part, const StateTensors&) { lent += part.size(); });
  EXPECT_EQ(lent, kSplitNumel);
}

}  // namespace
}  // namespace zeroshard
