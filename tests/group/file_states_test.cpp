#include "group/file_states.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>

#include "file/support.h"
#include "group/sharded_group.h"
#include "plan/swap_plan.h"
#include "support/faulty_queue.h"

namespace zeroshard {
namespace {

constexpr int64_t kNumel = 9 * kBlockNumel - 100;

std::vector<UnitLayout> make_units() {
  const auto unit = [&](std::string name, std::vector<ParamSpec> params) {
    return make_unit_layout(std::move(name), std::move(params), 2);
  };
  return {unit("first", {{{"a"}, {kNumel}, DType::kBFloat16, true},
                         {{"b"}, {700, 3}, DType::kFloat32, true},
                         {{"c"}, {5}, DType::kBFloat16, false}}),
          unit("nothing", {}), unit("last", {{{"d"}, {3000}, DType::kBFloat16, true}})};
}

std::vector<UnitPlacement> place_in_files(const std::vector<UnitLayout>& units) {
  PlacementOptions options;
  options.world_size = 2;
  options.stage = 1;
  std::vector<UnitPlacement> table = place(units, options);
  for (UnitPlacement& unit : table)
    for (GroupPlacement& group : unit.groups) group.master_weights.tier = group.moments.tier = Tier::kFile;
  return table;
}

class FileStatesTest : public ::testing::Test {
 protected:
  SwapSpace make_space(SwapSpace::OnFailure on_failure = {}, const ChunkStore::Wrap& wrap = {}) {
    ChunkStore::Options options;
    options.directories = {directory_.path()};
    options.chunk_numel = 2 * kBlockNumel;
    options.buffer_count = 2;
    return SwapSpace(groups_, options, posix_io(), ledger_, Tier::kDevice, std::move(on_failure), wrap);
  }

  testing::TemporaryDirectory directory_;
  std::vector<UnitLayout> units_ = make_units();
  std::vector<UnitPlacement> table_ = place_in_files(units_);
  std::vector<ChunkGroup> groups_ = groups_in_file(units_, table_);
  Ledger ledger_;
};

TEST_F(FileStatesTest, GroupsInFilesAreThoseThatAreTrained) {
  ASSERT_EQ(groups_.size(), 3U);
  EXPECT_EQ(groups_[0].slots, 2);  // fp32 parameters are their own master weights
  EXPECT_EQ(groups_[1].slots, 3);
  EXPECT_EQ(groups_[2].slots, 3);
  EXPECT_EQ(groups_[1].numel, 5 * kBlockNumel);
}

// Of groups with a share in files, these have blocks of that share alone.
TEST_F(FileStatesTest, TheFilesHaveTheShareOfAGroup) {
  for (UnitPlacement& unit : table_)
    for (GroupPlacement& group : unit.groups) group.master_weights.share = group.moments.share = 0.5;
  groups_ = groups_in_file(units_, table_);
  ASSERT_EQ(groups_.size(), 3U);
  EXPECT_EQ(groups_[0].numel, kBlockNumel);      // of two
  EXPECT_EQ(groups_[1].numel, 3 * kBlockNumel);  // of five
  SwapSpace space = make_space();
  const FileStates states(space, 1, units_[0].groups[1].layout, table_[0].groups[1], ledger_);
  EXPECT_EQ(ledger_.current().at(Category::kMasterWeights, Tier::kFile), 3 * kBlockNumel * 4);
  EXPECT_EQ(ledger_.current().at(Category::kMoments, Tier::kFile), 3 * kBlockNumel * 8);
}

TEST_F(FileStatesTest, TheLedgerHasFilesAndBuffers) {
  Bytes expected;
  {
    SwapSpace space = make_space();
    EXPECT_EQ(ledger_.current().at(Category::kSwap, Tier::kDevice), space.store().memory_bytes());
    const FileStates states(space, 1, units_[0].groups[1].layout, table_[0].groups[1], ledger_);
    EXPECT_EQ(ledger_.current().at(Category::kMasterWeights, Tier::kFile), 5 * kBlockNumel * 4);
    EXPECT_EQ(ledger_.current().at(Category::kMoments, Tier::kFile), 5 * kBlockNumel * 8);
    EXPECT_EQ(space.store().layout().total_bytes(), 5 * kBlockNumel * 12 + 2 * kBlockNumel * 8 + 2 * kBlockNumel * 12);
  }
  EXPECT_EQ(ledger_.current(), expected);
}

TEST_F(FileStatesTest, AGroupUsesThemAsOthers) {
  SwapSpace space = make_space();
  const UnitLayout& unit = units_[0];
  auto own = std::make_unique<FileStates>(space, 1, unit.groups[1].layout, table_[0].groups[1], ledger_);
  const FileStates other(space, 2, units_[2].groups[0].layout, table_[2].groups[0], ledger_);
  EXPECT_EQ(own->in_memory(), nullptr);
  const int64_t padded = unit.groups[1].layout.padded_numel();
  ShardedGroup group(unit, 1, table_[0], {1, 0, false, {0}}, at::zeros({padded}, at::kBFloat16), std::move(own));
  const at::Tensor values = at::arange(padded, at::kFloat) / 3;
  for (int64_t begin = 0; begin < padded; begin += 999) {
    const int64_t end = std::min(begin + 999, padded);
    group.write_master({begin, end}, values.slice(0, begin, end));
  }
  group.publish_master();
  const Range mine = group.mine();
  EXPECT_TRUE(group.my_shard().equal(values.slice(0, mine.begin, mine.end).to(at::kBFloat16)));
  group.my_shard().fill_(2);
  group.take_parameters();
  int64_t next = 0;
  group.states().lend({0, mine.size()}, OptimizerStates::Access::kRead, [&](Range part, const StateTensors& lent) {
    EXPECT_EQ(part.begin, next);
    next = part.end;
    EXPECT_TRUE(lent.master.equal(at::full({part.size()}, 2.F)));
    ASSERT_EQ(lent.moments.size(), 2U);
    for (const at::Tensor& moment : lent.moments) EXPECT_TRUE(moment.equal(at::zeros({part.size()})));
  });
  EXPECT_EQ(next, mine.size());
}

TEST_F(FileStatesTest, AFailureIsToldOnceAndOneOfABorrowerIsNot) {
  std::vector<std::string> told;
  testing::QueueFaults faults;
  SwapSpace space = make_space([&](const std::string& message) { told.push_back(message); },
                               [&](std::unique_ptr<BlockQueue> queue) {
                                 return std::make_unique<testing::FaultyQueue>(std::move(queue), faults);
                               });
  FileStates states(space, 1, units_[0].groups[1].layout, table_[0].groups[1], ledger_);
  const auto lend = [&](auto use) { states.lend({0, 5 * kBlockNumel}, OptimizerStates::Access::kModify, use); };
  const auto fail = [](Range, const StateTensors&) { throw IoError("of the borrower"); };
  EXPECT_THROW(lend(fail), IoError);
  EXPECT_TRUE(told.empty());
  faults.nth = faults.requests + 1;
  faults.error = EIO;
  const auto nothing = [](Range, const StateTensors&) {};
  for (int i = 0; i < 2; ++i) EXPECT_THROW(lend(nothing), IoError);
  ASSERT_EQ(told.size(), 1U);
  EXPECT_THAT(told[0], ::testing::HasSubstr(directory_.path()));
  EXPECT_THAT(told[0], ::testing::HasSubstr("(group 1 of unit 'first')"));
}

}  // namespace
}  // namespace zeroshard
