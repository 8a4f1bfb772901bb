#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <gmock/gmock.h>

#include <array>
#include <atomic>
#include <chrono>
#include <deque>
#include <functional>
#include <thread>
#include <utility>
#include <vector>

#include "device/dtype.h"
#include "file/support.h"
#include "group/sharded_group.h"
#include "plan/swap_plan.h"
#include "store/array.h"
#include "support/faulty_queue.h"
#include "support/random.h"
#include "zeroshard/error.h"

namespace zeroshard {
namespace {

using Access = Array::Access;

constexpr DType kDTypes[] = {DType::kFloat32, DType::kBFloat16, DType::kOther8, DType::kOther1};
constexpr int64_t kShardNumel = 9 * kBlockNumel;  // of a shard

// A frozen group of each dtype, and a trained one, in a unit each.
std::vector<UnitLayout> make_file_shard_units() {
  std::vector<UnitLayout> units;
  for (const DType dtype : kDTypes)
    units.push_back(
        make_unit_layout(concat("frozen ", name_of(dtype)), {{{"a"}, {2 * kShardNumel - 50}, dtype, false}}, 2));
  units.push_back(make_unit_layout("trained", {{{"b"}, {2 * kShardNumel - 50}, DType::kBFloat16, true}}, 2));
  units.push_back(make_unit_layout("own master", {{{"c"}, {2 * kShardNumel - 50}, DType::kFloat32, true}}, 2));
  return units;
}

std::vector<UnitPlacement> place_shards_in_files(const std::vector<UnitLayout>& units) {
  PlacementOptions options;
  options.world_size = 2;
  options.stage = 3;
  options.persistence_threshold = 0;
  options.parameter_tier = options.state_tier = Tier::kFile;
  return place(units, options);
}

class FileShardTest : public ::testing::Test {
 protected:
  SwapSpace make_space(const std::vector<ChunkGroup>& groups, SwapSpace::OnFailure on_failure = {}) {
    ChunkStore::Options options;
    options.directories = {directory_.path()};
    options.chunk_numel = 2 * kBlockNumel;
    options.buffer_count = 3;
    testing::QueueFaults& faults = faults_.emplace_back();
    const auto wrap = [&faults](std::unique_ptr<BlockQueue> queue) {
      return std::make_unique<testing::FaultyQueue>(std::move(queue), faults);
    };
    return SwapSpace(groups, options, posix_io(), ledger_, Tier::kDevice, std::move(on_failure), wrap);
  }
  Array in_files(SwapSpace& space, size_t group, DType dtype) {
    return Array(std::make_unique<FileStorage>(
                     space, FileStorage::Options{group, kShardNumel, {{dtype, Category::kParameters}}, /*packed=*/true},
                     ledger_),
                 Array::Options{.while_a_save_reads = while_a_save_reads_});
  }
  // Group 0 of unit `u`, of rank 1.
  ShardedGroup make_group(size_t u, SwapSpace& parameters, SwapSpace* states = nullptr) {
    ShardedGroup::Options options;
    options.rank = 1;
    options.param_group = {0};
    auto in_file = std::make_unique<Array>(in_files(parameters, u, units_[u].groups[0].dtype));
    std::unique_ptr<Array> own;
    if (states) {
      const GroupPlacement& place = table_[u].groups[0];
      own = std::make_unique<Array>(
          states_in_files(*states, u - std::size(kDTypes), place.states_on(Tier::kFile, units_[u].groups[0].layout),
                          place, ledger_),
          Array::Options{.has_master = place.master_weights.extent != Extent::kNothing});
    }
    return ShardedGroup(units_[u], 0, table_[u], std::move(options), std::move(in_file), std::move(own));
  }

  testing::TemporaryDirectory directory_;
  std::deque<testing::QueueFaults> faults_;  // of each space
  std::vector<UnitLayout> units_ = make_file_shard_units();
  std::vector<UnitPlacement> table_ = place_shards_in_files(units_);
  std::vector<ChunkGroup> groups_ = parameters_in_file(units_, table_);
  WriteHold::WhileWaiting while_a_save_reads_;
  std::atomic<bool> are_read_ = false;
  Ledger ledger_;
};

TEST_F(FileShardTest, AnyRangesLookLikeMemory) {
  ASSERT_EQ(groups_.size(), units_.size());
  for (const uint64_t seed : testing::seeds(3)) {
    SCOPED_TRACE(seed);
    testing::SeededRandom random(seed);
    SwapSpace space = make_space(groups_);
    for (size_t g = 0; g < std::size(kDTypes); ++g) {
      Array params = in_files(space, g, kDTypes[g]);
      at::Tensor expected = at::zeros({kShardNumel}, to_scalar_type(kDTypes[g]));
      for (int step = 0; step < 40; ++step) {
        const int64_t a = int64_t(random() % uint64_t(kShardNumel + 1)),
                      b = int64_t(random() % uint64_t(kShardNumel + 1));
        const Range range = step % 10 == 0 ? Range{0, kShardNumel} : Range{std::min(a, b), std::max(a, b)};
        const auto access = std::array{Access::kRead, Access::kModify, Access::kOverwrite}[random() % 3];
        if (random() % 3 == 0) space.will_need_next(std::array{*params.place_in_files(range)});
        int64_t next = range.begin;
        params.lend(range, access, [&](Range part, const at::Tensor& lent) {
          ASSERT_EQ(part.begin, next);
          ASSERT_EQ(lent.numel(), part.size());
          next = part.end;
          at::Tensor own = expected.slice(0, part.begin, part.end);
          if (access != Access::kOverwrite) {
            ASSERT_TRUE(lent.equal(own)) << name_of(kDTypes[g]);
          }
          if (access == Access::kRead) return;
          own.copy_(at::randint(100, {part.size()}));
          lent.copy_(own);
        });
        ASSERT_EQ(next, range.end);
      }
      EXPECT_TRUE(params.copy_of({0, kShardNumel}).equal(expected)) << name_of(kDTypes[g]);
    }
    EXPECT_EQ(faults_.back().conflicts, 0);
  }
}

TEST_F(FileShardTest, WhatIsReadIsNotWrittenAndWhatIsOverwrittenIsNotRead) {
  SwapSpace space = make_space(groups_);
  int64_t most = 0;  // bytes written
  for (size_t g = 0; g < std::size(kDTypes); ++g) {
    Array params = in_files(space, g, kDTypes[g]);
    const int64_t read = space.store().bytes_read();
    params.lend({0, kShardNumel}, Access::kOverwrite, [](Range, const at::Tensor& lent) { lent.fill_(3); });
    EXPECT_EQ(space.store().bytes_read(), read) << name_of(kDTypes[g]);
    for (int times = 0; times < 3; ++times)
      EXPECT_TRUE(params.copy_of({0, kShardNumel}).equal(at::full({kShardNumel}, 3, to_scalar_type(kDTypes[g]))));
    most += align_up(kShardNumel * element_size(kDTypes[g]), 4096);
    EXPECT_LE(space.store().bytes_written(), most);
  }
}

// Where several elements share a value of the store.
TEST_F(FileShardTest, ElementsBesideWhatIsOverwrittenStay) {
  SwapSpace space = make_space(groups_);
  Array others = in_files(space, 0, kDTypes[0]);
  for (size_t g = 1; g < std::size(kDTypes); ++g) {
    Array params = in_files(space, g, kDTypes[g]);
    params.lend({0, kShardNumel}, Access::kOverwrite, [](Range, const at::Tensor& lent) { lent.fill_(5); });
    others.copy_of({0, kShardNumel});  // takes the buffers
    params.lend({1, kShardNumel - 1}, Access::kOverwrite, [](Range, const at::Tensor& lent) { lent.fill_(7); });
    at::Tensor expected = at::full({kShardNumel}, 5, to_scalar_type(kDTypes[g]));
    expected.slice(0, 1, kShardNumel - 1).fill_(7);
    EXPECT_TRUE(params.copy_of({0, kShardNumel}).equal(expected)) << name_of(kDTypes[g]);
  }
}

TEST_F(FileShardTest, TheLedgerHasThem) {
  const Bytes expected;
  {
    SwapSpace space = make_space(groups_);
    const Array params = in_files(space, 1, DType::kBFloat16);
    EXPECT_EQ(ledger_.current().at(Category::kParameters, Tier::kFile), 2 * kShardNumel);
    EXPECT_EQ(ledger_.current().at(Category::kParameters, Tier::kDevice), 0);
  }
  EXPECT_EQ(ledger_.current(), expected);
}

// As if they were in memory, also beside states in files of their own.
TEST_F(FileShardTest, AGroupUsesThemAsOthers) {
  SwapSpace parameters = make_space(groups_), states = make_space(groups_in_file(units_, table_));
  for (size_t u = std::size(kDTypes); u < units_.size(); ++u) {
    SCOPED_TRACE(units_[u].name);
    ShardedGroup group = make_group(u, parameters, &states);
    const Range mine = group.mine();
    const at::Tensor values = at::arange(group.layout().padded_numel(), at::kFloat) / 3;
    const at::ScalarType type = to_scalar_type(group.flat().dtype);
    const auto shard = [&] { return group.parameters().copy_of({0, mine.size()}); };
    for (int64_t begin = 0; begin < values.numel(); begin += 999) {
      const int64_t end = std::min(begin + 999, values.numel());
      group.write_master({begin, end}, values.slice(0, begin, end));
      group.write_parameters({begin, end}, values.slice(0, begin, end));
    }
    EXPECT_TRUE(shard().equal(values.slice(0, mine.begin, mine.end).to(type)));
    // An update of some elements. Those of fp32 are their own master weights: they are read first.
    const Range some{1001, 7003};
    int64_t next = some.begin;
    group.lend(some, Access::kModify, {.writes = true},
               [&](Range part, const StateTensors& lent, const at::Tensor& params) {
                 EXPECT_EQ(part.begin, next);
                 next = part.end;
                 ASSERT_EQ(lent.moments.size(), 2U);
                 ASSERT_EQ(lent.moments[0].numel(), params.numel());
                 lent.moments[0].fill_(7);
                 at::Tensor master = group.has_master() ? lent.master : params;
                 master.mul_(-2);
                 params.copy_(master);
               });
    EXPECT_EQ(next, some.end);
    at::Tensor expected = values.slice(0, mine.begin, mine.end).clone();
    expected.slice(0, some.begin, some.end).mul_(-2);
    EXPECT_TRUE(shard().equal(expected.to(type)));
    if (!group.has_master()) continue;
    group.write_parameters(mine, at::full({mine.size()}, 2.F));
    group.copy_master_to_parameters();
    EXPECT_TRUE(shard().equal(expected.to(type)));
    group.write_parameters(mine, at::full({mine.size()}, 2.F));
    group.copy_parameters_to_master();
    group.states().lend_one({0, mine.size()}, kMasterWeights, Access::kRead, [&](Range, const at::Tensor& master) {
      EXPECT_TRUE(master.equal(at::full_like(master, 2.F)));
    });
  }
}

// Who writes to them waits for a save, before it borrows their states; who reads them does not.
TEST_F(FileShardTest, AreHeldWhileASaveReadsThem) {
  std::function<void()> read_states;  // by the save, of another group
  std::vector<std::thread> readers;
  int looks = 0;
  while_a_save_reads_ = [&] {
    ++looks;
    std::atomic<bool>& are_read = are_read_;
    are_read = false;
    readers.emplace_back([&] {
      read_states();
      are_read = true;
    });
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(5);
    while (!are_read && std::chrono::steady_clock::now() < end) std::this_thread::yield();
    EXPECT_TRUE(are_read);
    throw StateError("enough");
  };
  SwapSpace parameters = make_space(groups_), states = make_space(groups_in_file(units_, table_));
  for (size_t u = std::size(kDTypes); u < units_.size(); ++u) {
    SCOPED_TRACE(units_[u].name);
    ShardedGroup group = make_group(u, parameters, &states);
    Array& params = group.parameters();
    const Range mine = group.mine(), all{0, mine.size()};
    const at::Tensor values = at::arange(group.layout().padded_numel(), at::kFloat) / 3;
    group.write_parameters({0, values.numel()}, values);
    group.copy_parameters_to_master();
    const at::Tensor expected = params.copy_of(all);

    WriteHold::Reading reading = params.hold()->read();
    int lent = 0;
    const auto use = [&](Range, const StateTensors&, const at::Tensor&) { ++lent; };
    std::vector<std::function<void()>> writes = {
        [&] { group.lend(all, Access::kModify, {.writes = true}, use); },
        [&] {
          group.write_parameters({0, values.numel()}, values);
        },
        [&] { params.lend(all, Access::kOverwrite, [&](Range, const at::Tensor&) { ++lent; }); }};
    if (group.has_master()) writes.push_back([&] { group.copy_master_to_parameters(); });
    read_states = [&] {
      std::vector<float> to(size_t(all.size()));
      group.states().reader(0)->read(all, to.data());
    };
    for (const auto& write : writes) {
      EXPECT_THROW(write(), StateError);
      readers.back().join();
    }
    EXPECT_EQ(size_t(std::exchange(looks, 0)), writes.size());
    EXPECT_EQ(lent, 0);
    EXPECT_TRUE(params.copy_of(all).equal(expected));
    group.copy_parameters_to_master();
    group.lend(all, Access::kModify, {.reads = true}, use);
    EXPECT_EQ(looks, 0);

    at::Tensor found = at::zeros_like(expected);
    std::thread saver([&] {
      const auto reader = params.reader(0);
      for (int64_t at = 0; at < all.size(); at += 499)
        reader->read({at, std::min(at + 499, all.size())},
                     static_cast<char*>(found.data_ptr()) + at * found.element_size());
      reading.reset();
    });
    saver.join();
    EXPECT_TRUE(found.equal(expected));
    for (const auto& write : writes) write();
  }
}

TEST_F(FileShardTest, AFailureIsToldOnceWithTheUnit) {
  std::vector<std::string> told;
  SwapSpace space = make_space(groups_, [&](const std::string& message) { told.push_back(message); });
  ShardedGroup group = make_group(1, space);
  faults_.back().nth = faults_.back().requests + 1;
  faults_.back().error = EIO;
  at::Tensor to = at::zeros({kShardNumel}, at::kBFloat16);
  for (int i = 0; i < 2; ++i) EXPECT_THROW(group.parameters().read({0, kShardNumel}, to.data_ptr()), IoError);
  EXPECT_THROW(group.write_parameters({0, 2 * kShardNumel}, at::zeros({2 * kShardNumel})), IoError);
  ASSERT_EQ(told.size(), 1U);
  EXPECT_THAT(told[0], ::testing::AllOf(::testing::HasSubstr(directory_.path()),
                                        ::testing::HasSubstr("(parameters of group 0 of unit 'frozen bf16')")));
}

}  // namespace
}  // namespace zeroshard
