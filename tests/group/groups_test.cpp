#include "group/groups.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include "comm/local_comm.h"
#include "support/comm_world.h"
#include "support/piecewise_states.h"

namespace zeroshard {
namespace {

std::vector<UnitLayout> make_units(int world_size) {
  const auto unit = [&](std::string name, std::vector<ParamSpec> params) {
    return make_unit_layout(std::move(name), std::move(params), world_size);
  };
  return {unit("first", {{{"a"}, {1500}, DType::kBFloat16, true},
                         {{"b"}, {700, 3}, DType::kFloat32, true},
                         {{"c"}, {5}, DType::kBFloat16, false}}),
          unit("nothing", {}), unit("last", {{{"d"}, {3000}, DType::kBFloat16, true}})};
}

PlacementOptions options_of(int world_size, int stage) {
  PlacementOptions options;
  options.world_size = world_size;
  options.stage = stage;
  options.persistence_threshold = 0;
  return options;
}

void run(const std::function<void(Comm&, int stage)>& body) {
  for (const int world_size : {1, 2, 3, 7}) {
    for (const int stage : {0, 1, 2, 3}) {
      SCOPED_TRACE(::testing::Message() << "world " << world_size << ", stage " << stage);
      const auto errors = testing::run_local_world(world_size, [&](Comm& comm) {
        body(comm, stage);
        comm.barrier("end");
      });
      for (const std::string& error : errors) EXPECT_EQ(error, "");
    }
  }
}

TEST(Groups, HoldWhatTheTableSaysAndNoMore) {
  run([](Comm& comm, int stage) {
    const std::vector<UnitLayout> units = make_units(comm.world_size());
    const std::vector<UnitPlacement> table = place(units, options_of(comm.world_size(), stage));
    Ledger ledger;
    Groups groups(units, table, {}, comm, ledger);
    Bytes expected;
    for (size_t u = 0; u < units.size(); ++u) {
      for (size_t g = 0; g < units[u].groups.size(); ++g) {
        const ShardLayout& layout = units[u].groups[g].layout;
        const GroupPlacement& place = table[u].groups[g];
        expected.at(Category::kParameters, Tier::kDevice) += place.parameters.bytes(layout);
        expected.at(Category::kMasterWeights, Tier::kDevice) += place.master_weights.bytes(layout);
        expected.at(Category::kMoments, Tier::kDevice) += place.moments.bytes(layout);
      }
    }
    EXPECT_EQ(ledger.current(), expected);
    groups.free_states();
    EXPECT_EQ(ledger.current().at(Category::kMoments, Tier::kDevice), 0);
    EXPECT_EQ(ledger.current().at(Category::kMasterWeights, Tier::kDevice), 0);
  });
}

// The first elements of a share lie elsewhere, and the others lie in the device's memory, where fp32 parameters are
// their own master weights.
TEST(Groups, KeepTheStatesThatDoNotLeave) {
  run([](Comm& comm, int stage) {
    if (stage == 0) return;
    const std::vector<UnitLayout> units = make_units(comm.world_size());
    PlacementOptions options = options_of(comm.world_size(), stage);
    options.state_tier = Tier::kHost;
    options.state_share = 0.4;
    std::vector<UnitPlacement> table = place(units, options);
    Ledger ledger;
    Groups::Options group_options;
    group_options.pin_states = false;
    Groups groups(units, table, group_options, comm, ledger);
    int64_t here = 0, there = 0, masters_here = 0;
    for (ShardedGroup* const group : groups.trained()) {
      const int64_t all = group->updated().size(), border = group->place().states_on(Tier::kHost, group->layout());
      EXPECT_EQ(border, std::min<int64_t>(all, kBlockNumel * ((all / kBlockNumel * 2 + 4) / 5)));
      there += border;
      here += all - border;
      if (group->flat().dtype != DType::kFloat32) masters_here += all - border;
      const at::Tensor values = at::arange(all, at::kFloat) / 3;
      group->write_master(group->updated(), values);
      std::vector<int64_t> ends;
      group->states().lend_one({0, all}, kMasterWeights, Array::Access::kRead,
                               [&](Range part, const at::Tensor& master) {
                                 ends.push_back(part.end);
                                 EXPECT_TRUE(master.equal(values.slice(0, part.begin, part.end)));
                               });
      EXPECT_EQ(ends, border < all ? (std::vector<int64_t>{border, all}) : std::vector<int64_t>{all});
      group->copy_master_to_parameters();
      EXPECT_TRUE(group->updated_parameters().equal(values.to(group->updated_parameters().scalar_type())));
      group->updated_parameters().fill_(0.5);
      group->copy_parameters_to_master();
      int64_t next = 0;
      const auto use = [&](Range part, const StateTensors& lent) {
        EXPECT_EQ(part.begin, next);
        next = part.end;
        EXPECT_TRUE(lent.master.equal(at::full({part.size()}, 0.5F)));
        ASSERT_EQ(lent.moments.size(), 2U);
      };
      group->states().lend({0, all}, Array::Access::kRead, use);
      EXPECT_EQ(next, all);
    }
    const Bytes held = ledger.current();
    EXPECT_EQ(held.at(Category::kMasterWeights, Tier::kHost), 4 * there);
    EXPECT_EQ(held.at(Category::kMoments, Tier::kHost), 8 * there);
    EXPECT_EQ(held.at(Category::kMasterWeights, Tier::kDevice), 4 * masters_here);
    EXPECT_EQ(held.at(Category::kMoments, Tier::kDevice), 8 * here);
    groups.free_states();
    EXPECT_EQ(ledger.current().total(Tier::kHost), 0);
    EXPECT_EQ(ledger.current().at(Category::kMoments, Tier::kDevice), 0);
  });
}

TEST(Groups, KeepStatesOfOtherTiersOutOfTheDevicesMemory) {
  run([](Comm& comm, int stage) {
    if (stage == 0) return;
    const std::vector<UnitLayout> units = make_units(comm.world_size());
    PlacementOptions options = options_of(comm.world_size(), stage);
    options.state_tier = options.gradient_tier = Tier::kHost;
    const std::vector<UnitPlacement> table = place(units, options);
    Ledger ledger;
    Groups::Options group_options;
    group_options.pin_states = false;
    Groups groups(units, table, group_options, comm, ledger);
    const Bytes held = ledger.current();
    EXPECT_EQ(held.total(Tier::kDevice), held.at(Category::kParameters, Tier::kDevice));
    int64_t numel = 0;
    for (ShardedGroup* const group : groups.trained()) {
      EXPECT_TRUE(group->has_master());
      EXPECT_EQ(group->states().in_memory()->moments.size(), 2U);
      numel += group->updated().size();
    }
    EXPECT_EQ(held.at(Category::kMasterWeights, Tier::kHost), 4 * numel);
    EXPECT_EQ(held.at(Category::kMoments, Tier::kHost), 8 * numel);
    groups.free_states();
    EXPECT_EQ(ledger.current().total(Tier::kHost), 0);
  });
}

TEST(Groups, AreFoundByUnitAndByNumber) {
  run([](Comm& comm, int stage) {
    const std::vector<UnitLayout> units = make_units(comm.world_size());
    Ledger ledger;
    Groups groups(units, place(units, options_of(comm.world_size(), stage)),
                  {.device = at::kCPU, .param_groups = {{2, 0, -1}, {}, {1}}}, comm, ledger);
    EXPECT_EQ(groups.all().size(), 4U);
    EXPECT_TRUE(groups.of_unit(1).empty());
    for (size_t u = 0; u < units.size(); ++u) {
      ASSERT_EQ(groups.of_unit(u).size(), units[u].groups.size());
      for (size_t g = 0; g < units[u].groups.size(); ++g) EXPECT_EQ(&groups.of_unit(u)[g].flat(), &units[u].groups[g]);
    }
    ASSERT_EQ(groups.trained().size(), 3U);
    for (size_t i = 0; i < 3; ++i) EXPECT_EQ(groups.trained()[i]->number(), i);
    std::map<std::string, int> param_groups;
    for (const ShardedGroup* const group : groups.trained())
      for (size_t i = 0; i < group->num_params(); ++i) param_groups[group->param(i).name()] = group->param_group(i);
    EXPECT_EQ(param_groups, (std::map<std::string, int>{{"a", 2}, {"b", 0}, {"d", 1}}));
  });
}

// Every rank writes all values, and keeps those that are its own.
TEST(ShardedGroup, KeepsAndUpdatesItsOwnPositions) {
  run([](Comm& comm, int stage) {
    const std::vector<UnitLayout> units = make_units(comm.world_size());
    Ledger ledger;
    Groups groups(units, place(units, options_of(comm.world_size(), stage)), {}, comm, ledger);
    ShardedGroup& group = groups.of_unit(2)[0];
    const int64_t padded = group.layout().padded_numel();
    const Range all{0, padded}, mine = group.layout().shard(comm.rank());
    EXPECT_EQ(group.mine(), mine);
    EXPECT_EQ(group.kept(), stage == 3 && comm.world_size() > 1 ? mine : all);
    EXPECT_EQ(group.updated(), stage == 0 ? all : mine);
    EXPECT_EQ(group.kept_parameters().numel(), group.kept().size());
    EXPECT_EQ(group.my_shard().data_ptr(),
              static_cast<char*>(group.kept_parameters().data_ptr()) +
                  (mine.begin - group.kept().begin) * group.kept_parameters().element_size());

    const at::Tensor values = at::arange(padded, at::kFloat) / 3;
    for (int64_t begin = 0; begin < padded; begin += 999) {
      const int64_t end = std::min(begin + 999, padded);
      group.write_master({begin, end}, values.slice(0, begin, end));
    }
    const at::Tensor& master = group.states().in_memory()->master;
    EXPECT_TRUE(master.equal(values.slice(0, group.updated().begin, group.updated().end)));
    group.copy_master_to_parameters();
    EXPECT_TRUE(group.updated_parameters().equal(master.to(at::kBFloat16)));
    group.updated_parameters().fill_(0.5);
    group.copy_parameters_to_master();
    EXPECT_TRUE(master.equal(at::full_like(master, 0.5)));
    EXPECT_EQ(group.state_range(0).size(), intersect(group.layout().param(0), group.updated()).size());
  });
}

TEST(ShardedGroup, StatesMayLieElsewhere) {
  const std::vector<UnitLayout> units = make_units(3);
  const UnitLayout& unit = units[2];
  const UnitPlacement placement = place(units, options_of(3, 1))[2];
  const int64_t numel = unit.groups[0].layout.shard_numel(), padded = 3 * numel;
  StateTensors kept{at::zeros({numel}, at::kFloat), {at::zeros({numel}, at::kFloat)}};
  auto states = testing::piecewise_states(kept, 100);
  ShardedGroup group(unit, 0, placement, {1, 0, false, {0}},
                     std::make_unique<Array>(at::zeros({padded}, at::kBFloat16)), std::move(states));
  const at::Tensor values = at::arange(padded, at::kFloat);
  group.write_master({numel - 10, numel + 500}, values.slice(0, numel - 10, numel + 500));
  EXPECT_TRUE(kept.master.slice(0, 0, 500).equal(values.slice(0, numel, numel + 500)));
  EXPECT_EQ(kept.master.slice(0, 500, numel).count_nonzero().item<int64_t>(), 0);
  group.copy_master_to_parameters();
  EXPECT_TRUE(group.my_shard().equal(kept.master.to(at::kBFloat16)));
  group.my_shard().fill_(2);
  group.copy_parameters_to_master();
  EXPECT_TRUE(kept.master.equal(at::full_like(kept.master, 2)));
}

}  // namespace
}  // namespace zeroshard
