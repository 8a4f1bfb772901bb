#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <unistd.h>

#include <thread>

#include "file/support.h"
#include "group/sharded_group.h"
#include "plan/swap_plan.h"
#include "store/array.h"
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

  // Those of group `g` of unit `u`, which has the number `group` in the files.
  std::unique_ptr<Array> make_states(SwapSpace& space, size_t u, size_t g, size_t group,
                                     std::optional<WriteHold::WhileWaiting> while_a_save_reads = std::nullopt) {
    const GroupPlacement& place = table_[u].groups[g];
    Array::Options options{.has_master = place.master_weights.extent != Extent::kNothing,
                           .while_a_save_reads = std::move(while_a_save_reads)};
    return std::make_unique<Array>(
        states_in_files(space, group, place.states_on(Tier::kFile, units_[u].groups[g].layout), place, ledger_),
        std::move(options));
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
  const auto kept = make_states(space, 0, 1, 1);
  EXPECT_EQ(ledger_.current().at(Category::kMasterWeights, Tier::kFile), 3 * kBlockNumel * 4);
  EXPECT_EQ(ledger_.current().at(Category::kMoments, Tier::kFile), 3 * kBlockNumel * 8);
}

TEST_F(FileStatesTest, TheLedgerHasFilesAndBuffers) {
  Bytes expected;
  {
    SwapSpace space = make_space();
    EXPECT_EQ(ledger_.current().at(Category::kSwap, Tier::kDevice), space.store().memory_bytes());
    const auto kept = make_states(space, 0, 1, 1);
    EXPECT_EQ(ledger_.current().at(Category::kMasterWeights, Tier::kFile), 5 * kBlockNumel * 4);
    EXPECT_EQ(ledger_.current().at(Category::kMoments, Tier::kFile), 5 * kBlockNumel * 8);
    EXPECT_EQ(space.store().layout().total_bytes(), 5 * kBlockNumel * 12 + 2 * kBlockNumel * 8 + 2 * kBlockNumel * 12);
  }
  EXPECT_EQ(ledger_.current(), expected);
}

TEST_F(FileStatesTest, AGroupUsesThemAsOthers) {
  SwapSpace space = make_space();
  const UnitLayout& unit = units_[0];
  auto own = make_states(space, 0, 1, 1);
  const auto other = make_states(space, 2, 0, 2);
  EXPECT_EQ(own->in_memory(), nullptr);
  const int64_t padded = unit.groups[1].layout.padded_numel();
  ShardedGroup group(unit, 1, table_[0], {1, 0, false, {0}},
                     std::make_unique<Array>(at::zeros({padded}, at::kBFloat16)), std::move(own));
  const at::Tensor values = at::arange(padded, at::kFloat) / 3;
  for (int64_t begin = 0; begin < padded; begin += 999) {
    const int64_t end = std::min(begin + 999, padded);
    group.write_master({begin, end}, values.slice(0, begin, end));
  }
  group.copy_master_to_parameters();
  const Range mine = group.mine();
  EXPECT_TRUE(group.my_shard().equal(values.slice(0, mine.begin, mine.end).to(at::kBFloat16)));
  group.my_shard().fill_(2);
  group.copy_parameters_to_master();
  int64_t next = 0;
  group.states().lend({0, mine.size()}, Array::Access::kRead, [&](Range part, const StateTensors& lent) {
    EXPECT_EQ(part.begin, next);
    next = part.end;
    EXPECT_TRUE(lent.master.equal(at::full({part.size()}, 2.F)));
    ASSERT_EQ(lent.moments.size(), 2U);
    for (const at::Tensor& moment : lent.moments) EXPECT_TRUE(moment.equal(at::zeros({part.size()})));
  });
  EXPECT_EQ(next, mine.size());
}

// Moments of 16 bits are lent as they are, and read beside as fp32, whatever stretch is asked for.
TEST_F(FileStatesTest, NarrowMomentsAreReadAsFp32) {
  for (UnitPlacement& unit : table_)
    for (GroupPlacement& group : unit.groups) group.moments.dtype = DType::kBFloat16;
  groups_ = groups_in_file(units_, table_);
  EXPECT_EQ(groups_[1].narrow_slots, 2);
  SwapSpace space = make_space();
  const auto kept = make_states(space, 0, 1, 1);
  Array& states = *kept;
  EXPECT_EQ(ledger_.current().at(Category::kMoments, Tier::kFile), 5 * kBlockNumel * 4);
  const Range all{0, 5 * kBlockNumel};
  const at::Tensor master = at::arange(all.end, at::kFloat), moment = (master / 3).to(at::kBFloat16);
  states.lend_one(all, kMasterWeights, Array::Access::kOverwrite,
                  [&](Range part, const at::Tensor& to) { to.copy_(master.slice(0, part.begin, part.end)); });
  states.lend_one(all, 1, Array::Access::kOverwrite, [&](Range part, const at::Tensor& to) {
    EXPECT_EQ(to.scalar_type(), at::kBFloat16);
    to.copy_(moment.slice(0, part.begin, part.end));
  });
  states.lend(all, Array::Access::kRead, [&](Range part, const StateTensors& lent) {
    EXPECT_TRUE(lent.master.equal(master.slice(0, part.begin, part.end)));
    EXPECT_TRUE(lent.moments.at(0).equal(at::zeros({part.size()}, at::kBFloat16)));
    EXPECT_TRUE(lent.moments.at(1).equal(moment.slice(0, part.begin, part.end)));
  });
  const auto of_moment = states.reader(1), of_master = states.reader(kMasterWeights);
  for (const Range range : {all, Range{0, 1}, Range{777, 2 * kBlockNumel + 5}, Range{all.end - 3, all.end}}) {
    at::Tensor got = at::full({range.size()}, -1.F);
    of_moment->read(range, got.data_ptr<float>());
    EXPECT_TRUE(got.equal(moment.slice(0, range.begin, range.end).to(at::kFloat))) << range.begin;
    of_master->read(range, got.data_ptr<float>());
    EXPECT_TRUE(got.equal(master.slice(0, range.begin, range.end))) << range.begin;
  }
}

// A save reads states beside others; who writes waits, who reads does not.
TEST_F(FileStatesTest, AreHeldWhileASaveReadsThem) {
  SwapSpace space = make_space();
  const UnitLayout& unit = units_[0];
  int looks = 0;
  const auto look = [&looks] {
    if (++looks > 1) throw StateError("enough");
  };
  auto own = make_states(space, 0, 1, 1, look);
  const int64_t padded = unit.groups[1].layout.padded_numel();
  ShardedGroup group(unit, 1, table_[0], {1, 0, false, {0}},
                     std::make_unique<Array>(at::zeros({padded}, at::kBFloat16)), std::move(own));
  const at::Tensor values = at::arange(padded, at::kFloat) / 3;
  const Range mine = group.mine(), states{0, mine.size()};
  group.write_master({0, padded}, values);
  Array& all = group.states();
  all.lend_one(states, 1, Array::Access::kOverwrite,
               [](Range part, const at::Tensor& to) { to.copy_(at::arange(part.begin, part.end, at::kFloat)); });
  EXPECT_EQ(all.in_memory(), nullptr);

  WriteHold::Reading reading = all.hold()->read();
  const auto none = [](Range, const at::Tensor&) {};
  const auto none_of_all = [](Range, const StateTensors&) {};
  const std::vector<std::function<void()>> writes = {[&] { all.lend(states, Array::Access::kModify, none_of_all); },
                                                     [&] { all.lend_one(states, 0, Array::Access::kOverwrite, none); },
                                                     [&] {
                                                       group.write_master({0, padded}, values);
                                                     },
                                                     [&] {
                                                       group.write_parameters({0, padded}, values);
                                                     },
                                                     [&] { group.copy_parameters_to_master(); }};
  for (const auto& write : writes) {
    looks = 0;
    EXPECT_THROW(write(), StateError);
  }
  looks = 0;
  all.lend(states, Array::Access::kRead, none_of_all);
  all.lend_one(states, 0, Array::Access::kRead, none);
  all.will_need(states);
  group.copy_master_to_parameters();
  EXPECT_EQ(looks, 0);

  std::vector<float> master(size_t(states.size())), second(size_t(states.size()));
  std::thread saver([&] {
    all.reader(kMasterWeights)->read(states, master.data());
    const auto reader = all.reader(1);
    for (int64_t at = 0; at < states.size(); at += 100)
      reader->read({at, std::min(at + 100, states.size())}, second.data() + at);
    reading.reset();
  });
  saver.join();
  for (const auto& write : writes) write();
  for (int64_t i = 0; i < states.size(); ++i) {
    ASSERT_EQ(master[size_t(i)], values[mine.begin + i].item<float>());
    ASSERT_EQ(second[size_t(i)], float(i));
  }
}

TEST_F(FileStatesTest, AReaderThatFailsIsToldToo) {
  std::vector<std::string> told;
  SwapSpace space = make_space([&](const std::string& message) { told.push_back(message); });
  const auto kept = make_states(space, 0, 1, 1);
  Array& states = *kept;
  const auto other = make_states(space, 2, 0, 2);
  for (const SwapFile& file : space.store().files()) ASSERT_EQ(::ftruncate(file.fd(), 0), 0);
  std::vector<float> values(size_t{5} * kBlockNumel);
  for (int again = 0; again < 2; ++again)
    EXPECT_THROW(states.reader(0)->read({0, 5 * kBlockNumel}, values.data()), IoError);
  EXPECT_THROW(states.lend({0, 1}, Array::Access::kRead, [](Range, const StateTensors&) {}), IoError);
  ASSERT_EQ(told.size(), 1U);
  EXPECT_THAT(told[0], ::testing::HasSubstr("(group 1 of unit 'first')"));
}

TEST_F(FileStatesTest, AFailureIsToldOnceAndOneOfABorrowerIsNot) {
  std::vector<std::string> told;
  testing::QueueFaults faults;
  SwapSpace space = make_space([&](const std::string& message) { told.push_back(message); },
                               [&](std::unique_ptr<BlockQueue> queue) {
                                 return std::make_unique<testing::FaultyQueue>(std::move(queue), faults);
                               });
  const auto kept = make_states(space, 0, 1, 1);
  Array& states = *kept;
  const auto lend = [&](auto use) { states.lend({0, 5 * kBlockNumel}, Array::Access::kModify, use); };
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
