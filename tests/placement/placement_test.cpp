#include "placement/placement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "config/unit_pattern.h"
#include "zeroshard/error.h"

namespace zeroshard {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

UnitLayout unit(const std::string& name, int64_t numel, int world_size, DType dtype = DType::kBFloat16) {
  return make_unit_layout(name, {{{name + ".weight"}, {numel}, dtype, /*requires_grad=*/true}}, world_size);
}

std::vector<UnitLayout> model(int world_size) {
  std::vector<UnitLayout> units{unit("model.embed", 900'000, world_size)};
  for (const char* number : {"0", "1", "2", "10"})
    units.push_back(unit(std::string("model.layers.") + number, 500'000, world_size));
  units.push_back(unit("model.norm", 700, world_size));
  return units;
}

std::vector<Placement> parameters_of(const std::vector<UnitPlacement>& table) {
  std::vector<Placement> parameters;
  for (const UnitPlacement& unit : table) parameters.push_back(unit.parameters);
  return parameters;
}

constexpr auto kReplicated = Placement::kReplicated, kSharded = Placement::kSharded,
               kPersistent = Placement::kPersistent;

TEST(Place, StageThreeShardsParametersAndKeepsSmallUnits) {
  for (const int stage : {0, 1, 2, 3}) {
    for (const int world_size : {1, 2, 3}) {
      PlacementOptions options;
      options.stage = stage;
      options.world_size = world_size;
      const bool shards = stage == 3 && world_size > 1;
      const Placement large = shards ? kSharded : kReplicated, small = shards ? kPersistent : kReplicated;
      EXPECT_THAT(parameters_of(place(model(world_size), options)),
                  ::testing::ElementsAre(large, large, large, large, large, small))
          << stage << " " << world_size;
    }
  }
}

TEST(Place, StatesAndReducedGradientsLieWhereTheyAreAskedTo) {
  for (const int world_size : {1, 3}) {
    for (const int stage : {0, 1, 2, 3}) {
      for (const DType dtype : {DType::kBFloat16, DType::kFloat32}) {
        SCOPED_TRACE(::testing::Message() << world_size << " ranks, stage " << stage << ", " << name_of(dtype));
        PlacementOptions options;
        options.stage = stage;
        options.world_size = world_size;
        const std::vector<UnitLayout> units{unit("a", 500'000, world_size, dtype)};
        const GroupPlacement without = place(units, options)[0].groups[0];
        options.state_tier = options.gradient_tier = Tier::kHost;
        GroupPlacement expected = without;
        if (stage > 0) {
          expected.packed_gradients = {};
          expected.reduced_gradients = {Extent::kPart, dtype, 1, Tier::kHost};
          expected.master_weights = {Extent::kPart, DType::kFloat32, 1, Tier::kHost};
          expected.moments.tier = Tier::kHost;
          expected.host_updates = true;
        }
        EXPECT_EQ(place(units, options)[0].groups[0], expected);
        // Parameters of a rank on the CPU stay the master weights, if they are fp32.
        options.state_tier = Tier::kFile;
        options.gradient_tier = Tier::kDevice;
        expected = without;
        if (stage > 0) expected.moments.tier = expected.master_weights.tier = Tier::kFile;
        if (dtype == DType::kFloat32) expected.master_weights = {};
        EXPECT_EQ(place(units, options)[0].groups[0], expected);
      }
    }
  }
}

// In whole blocks, as few as make up the share; one at least. What is left lies on the device.
TEST(Place, AShareOfTheStatesLeavesInWholeBlocks) {
  for (const int64_t numel : {1, 700, 5'000, 40'000, 500'000}) {
    for (const int world_size : {1, 3}) {
      const std::vector<UnitLayout> units{unit("a", numel, world_size)};
      const ShardLayout& layout = units[0].groups[0].layout;
      const int64_t all = layout.shard_numel();
      for (const double share : {0.001, 0.3, 0.5, 0.999}) {
        SCOPED_TRACE(::testing::Message() << numel << " elements, " << world_size << " ranks, share " << share);
        PlacementOptions options;
        options.stage = 2;
        options.world_size = world_size;
        options.state_tier = Tier::kFile;
        options.state_share = share;
        const GroupPlacement placed = place(units, options)[0].groups[0];
        EXPECT_EQ(placed.state_tier(), Tier::kFile);
        const int64_t away = placed.states_on(Tier::kFile, layout);
        EXPECT_EQ(away % kBlockNumel, 0);
        EXPECT_GE(double(away), share * double(all));
        EXPECT_LT(double(away), share * double(all) + double(kBlockNumel));
        EXPECT_EQ(placed.states_on(Tier::kDevice, layout), all - away);
        EXPECT_EQ(placed.states_on(Tier::kHost, layout), 0);
        for (const Stored& held : {placed.master_weights, placed.moments}) {
          EXPECT_EQ(held.bytes_on(Tier::kFile, layout), held.element_bytes() * away);
          EXPECT_EQ(held.bytes_on(Tier::kDevice, layout) + held.bytes_on(Tier::kFile, layout), held.bytes(layout));
        }
        EXPECT_EQ(placed.parameters.bytes_on(Tier::kDevice, layout), placed.parameters.bytes(layout));
      }
    }
  }
}

TEST(Place, AShareOfNoneAndOfAllAndOnTheDevice) {
  const std::vector<UnitLayout> units{unit("a", 500'000, 3)};
  PlacementOptions options;
  options.stage = 1;
  options.world_size = 3;
  const GroupPlacement without = place(units, options)[0].groups[0];
  options.state_share = 0.5;  // of what leaves the device: nothing
  EXPECT_EQ(place(units, options)[0].groups[0], without);
  options.state_tier = Tier::kFile;
  options.state_share = 0;
  EXPECT_EQ(place(units, options)[0].groups[0], without);
  options.state_share = 1;
  EXPECT_EQ(place(units, options)[0].groups[0].states_on(Tier::kDevice, units[0].groups[0].layout), 0);
}

TEST(Place, OneRankMayHaveTheShapeOfShards) {
  PlacementOptions options;
  options.shard_one_rank = true;
  for (const int stage : {0, 1, 2, 3}) {
    options.stage = stage;
    PlacementOptions several = options;
    several.world_size = 3;
    EXPECT_EQ(parameters_of(place(model(1), options)), parameters_of(place(model(3), several))) << stage;
    EXPECT_EQ(place(model(1), options), place(model(1), several)) << stage;
  }
}

// In files lie the shards of gathered units, but for the first ones, of which some elements may stay in memory.
TEST(Place, ParametersInFiles) {
  for (const int ranks : {1, 3}) {
    const auto block = [&](const std::string& name, int64_t numel) {
      return make_unit_layout(
          name, {{{name}, {numel}, DType::kBFloat16, true}, {{name + ".base"}, {numel}, DType::kBFloat16, false}},
          ranks);
    };
    const std::vector<UnitLayout> units{block("a", 30'000), block("b", 300'000), block("c", 30'000), block("d", 10)};
    PlacementOptions options;
    options.world_size = ranks;
    options.stage = 3;
    options.parameter_tier = Tier::kFile;
    options.persistence_threshold = 1000;
    const auto tiers = [&] {
      std::vector<Tier> found;
      for (const UnitPlacement& unit : place(units, options))
        for (const GroupPlacement& group : unit.groups) found.push_back(group.parameters.tier);
      return found;
    };
    constexpr Tier kMemory = Tier::kDevice, kFile = Tier::kFile;
    using Tiers = std::vector<Tier>;
    for (const Tier states : {Tier::kDevice, Tier::kHost, Tier::kFile}) {
      options.state_tier = states;
      EXPECT_EQ(tiers(), (Tiers{kFile, kFile, kFile, kFile, kFile, kFile, kMemory, kMemory}));
    }
    const int64_t shard = units[0].groups[0].layout.shard_numel();
    options.parameters_in_memory = 3 * shard;
    EXPECT_EQ(tiers(), (Tiers{kMemory, kMemory, kFile, kFile, kMemory, kFile, kMemory, kMemory}));
    options.parameters_in_memory = shard - 1;
    EXPECT_EQ(tiers(), (Tiers{kFile, kFile, kFile, kFile, kFile, kFile, kMemory, kMemory}));
    for (const int lower : {0, 1, 2}) {
      options.stage = lower;
      EXPECT_EQ(tiers(), Tiers(8, kMemory));
    }
  }
}

// An optimizer outside writes to master weights: fp32 parameters that are such stay in memory, and no others.
TEST(Place, MasterWeightsThatStayInMemory) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    const std::vector<UnitLayout> units{make_unit_layout(
        "block", {{{"weight"}, {100}, dtype, true}, {{"base"}, {900}, dtype, false}}, /*world_size=*/2)};
    PlacementOptions options;
    options.world_size = 2;
    options.stage = 3;
    options.persistence_threshold = 0;
    options.parameter_tier = Tier::kFile;
    options.masters_in_memory = true;
    const auto tier = [&](size_t group) { return place(units, options)[0].groups[group].parameters.tier; };
    const bool is_master = dtype == DType::kFloat32;
    EXPECT_EQ(tier(0), is_master ? Tier::kDevice : Tier::kFile);
    options.on_device = true;
    EXPECT_EQ(tier(0), is_master ? Tier::kDevice : Tier::kFile);  // by the device
    options.state_tier = Tier::kHost;
    EXPECT_EQ(tier(0), is_master ? Tier::kHost : Tier::kFile);
    EXPECT_EQ(tier(1), Tier::kFile);
  }
}

// Those of 16 bits leave with a share of their states, and the device sends what it updates. fp32 ones are the master
// weights of what the device updates, and stay; frozen ones leave.
TEST(Place, ParametersLeaveWithAShareOfTheirStates) {
  const auto placed = [](DType dtype, const PlacementOptions& options) {
    const std::vector<UnitLayout> units{make_unit_layout(
        "block", {{{"weight"}, {5000}, dtype, true}, {{"base"}, {900}, dtype, false}}, options.world_size)};
    return place(units, options)[0].groups;
  };
  for (const Tier states : {Tier::kHost, Tier::kFile}) {
    for (const Tier parameters : {Tier::kHost, Tier::kFile}) {
      PlacementOptions options;
      options.world_size = 2;
      options.stage = 3;
      options.on_device = true;
      options.persistence_threshold = 0;
      options.state_tier = states;
      options.parameter_tier = parameters;
      for (const double share : {0.3, 1.0}) {
        options.state_share = share;
        const std::vector<GroupPlacement> narrow = placed(DType::kBFloat16, options);
        EXPECT_EQ(narrow[0].parameters.tier, parameters);
        EXPECT_EQ(narrow[0].device_updates_offloaded_parameters, share < 1);
        EXPECT_FALSE(narrow[0].host_updates_device_parameters());
        EXPECT_TRUE(narrow[0].fetches_gradients());
        EXPECT_FALSE(narrow[1].device_updates_offloaded_parameters);
        const std::vector<GroupPlacement> wide = placed(DType::kFloat32, options);
        EXPECT_EQ(wide[0].parameters.tier, share < 1 ? Tier::kDevice : parameters);
        EXPECT_FALSE(wide[0].device_updates_offloaded_parameters);
        EXPECT_EQ(wide[0].host_updates_device_parameters(), share < 1);
        EXPECT_EQ(wide[1].parameters.tier, parameters);
      }
    }
  }
}

// At stage 3 the shards of gathered units leave the device, on one rank, too. fp32 parameters that the device updates
// are master weights there, and stay.
TEST(Place, ParametersOnTheHost) {
  for (const int ranks : {1, 3}) {
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
      const std::vector<UnitLayout> units{
          make_unit_layout("block", {{{"weight"}, {100}, dtype, true}, {{"base"}, {900}, dtype, false}}, ranks)};
      PlacementOptions options;
      options.world_size = ranks;
      options.on_device = true;
      options.persistence_threshold = 0;
      for (const int stage : {0, 1, 2, 3}) {
        options.stage = stage;
        options.parameter_tier = options.state_tier = options.gradient_tier = Tier::kDevice;
        const std::vector<UnitPlacement> without = place(units, options);
        options.parameter_tier = Tier::kHost;
        const auto parameters = [&](size_t group) { return place(units, options)[0].groups[group].parameters; };
        if (stage < 3) {
          EXPECT_EQ(place(units, options), without) << stage;
          continue;
        }
        const bool stays = dtype == DType::kFloat32;
        EXPECT_EQ(parameters(0), (Stored{Extent::kShard, dtype, 1, stays ? Tier::kDevice : Tier::kHost}));
        EXPECT_EQ(place(units, options)[0].groups[0].device_updates_offloaded_parameters, !stays);
        EXPECT_EQ(place(units, options)[0].groups[0].master_weights.extent, stays ? Extent::kNothing : Extent::kPart);
        EXPECT_EQ(parameters(1), (Stored{Extent::kShard, dtype, 1, Tier::kHost}));
        EXPECT_FALSE(place(units, options)[0].groups[1].device_updates_offloaded_parameters);
        options.state_tier = options.gradient_tier = Tier::kHost;
        for (const size_t group : {0, 1}) EXPECT_EQ(parameters(group), (Stored{Extent::kShard, dtype, 1, Tier::kHost}));
        EXPECT_FALSE(place(units, options)[0].groups[0].device_updates_offloaded_parameters);
        const Stored masters = place(units, options)[0].groups[0].master_weights;
        EXPECT_EQ(masters.extent, dtype == DType::kFloat32 ? Extent::kNothing : Extent::kPart);
        PlacementOptions small = options, whole = options;
        small.persistence_threshold = 1000;
        whole.rules = {{"block", /*replicated=*/true}};
        for (const PlacementOptions& stays : {small, whole}) {
          const UnitPlacement placed = place(units, stays)[0];
          for (const GroupPlacement& group : placed.groups) EXPECT_EQ(group.parameters.tier, Tier::kDevice);
          EXPECT_EQ(placed.groups[0].master_weights.extent, Extent::kPart);
        }
      }
    }
  }
}

TEST(Place, RulesPlaceSingleUnitsAndTheLastCounts) {
  PlacementOptions options;
  options.stage = 3;
  options.world_size = 3;
  options.rules = {{"layers.0-3", true}, {"layers.1", false}, {"norm", false}, {"embed", true}};
  const std::vector<UnitPlacement> table = place(model(3), options);
  EXPECT_THAT(parameters_of(table),
              ::testing::ElementsAre(kReplicated, kReplicated, kSharded, kReplicated, kSharded, kSharded));
  EXPECT_EQ(table[0].groups[0].parameters.extent, Extent::kWhole);
  EXPECT_EQ(table[2].groups[0].parameters.extent, Extent::kShard);
  for (const UnitPlacement& unit : table) {  // gradients and states are the stage's
    EXPECT_EQ(unit.groups[0].packed_gradients.extent, Extent::kNothing);
    EXPECT_EQ(unit.groups[0].master_weights.extent, Extent::kPart);
    EXPECT_EQ(unit.groups[0].moments, (Stored{Extent::kPart, DType::kFloat32, 2}));
  }
}

TEST(Place, AWorldOfOneHasNothingToPlace) {
  PlacementOptions options;
  options.stage = 3;
  options.rules = {{"layers.*", false}};
  for (const Placement parameters : parameters_of(place(model(1), options))) EXPECT_EQ(parameters, kReplicated);
}

TEST(Place, FrozenGroupsHaveParametersAlone) {
  PlacementOptions options;
  options.stage = 1;
  options.world_size = 2;
  const std::vector<UnitLayout> units{
      make_unit_layout("frozen", {{{"weight"}, {100}, DType::kBFloat16, /*requires_grad=*/false}}, 2)};
  GroupPlacement expected;
  expected.parameters = {Extent::kWhole, DType::kBFloat16};
  EXPECT_EQ(place(units, options)[0].groups[0], expected);
}

TEST(Place, ARuleThatNamesNoUnitIsRefusedWithThoseThatThereAre) {
  PlacementOptions options;
  options.stage = 3;
  options.world_size = 2;
  options.rules = {{"layers.0", true}, {"layers.7-9", true}};
  try {
    place(model(2), options);
    FAIL();
  } catch (const ValueError& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("zeroshard.placement[1].units is 'layers.7-9', which names no unit"),
                                    HasSubstr("'model.embed', 'model.layers.0'"), HasSubstr("and 1 more")));
  }
  options.rules = {{"layers..0", true}};
  EXPECT_THROW(place(model(2), options), ValueError);
}

TEST(UnitPattern, NamesTheLastPartsOfAName) {
  for (const char* pattern : {"model.layers.12", "layers.12", "12", "layers.*", "*", "*.12", "layers.3-12", "12-12"})
    EXPECT_TRUE(names_unit(pattern, "model.layers.12")) << pattern;
  for (const char* pattern :
       {"layers", "layers.1", "layers.1-11", "ayers.12", "a.model.layers.12", "model.12", "layers.012"})
    EXPECT_FALSE(names_unit(pattern, "model.layers.12")) << pattern;
  EXPECT_TRUE(names_unit("a-b", "x.a-b"));
  EXPECT_FALSE(names_unit("0-3", "layers.x"));
}

TEST(UnitPattern, WhatIsNotWellFormedIsTold) {
  EXPECT_EQ(problem_of_pattern("layers.0-3"), "");
  for (const char* pattern : {"", ".", "layers.", ".0", "a..b"})
    EXPECT_EQ(problem_of_pattern(pattern), "has an empty part");
  EXPECT_THAT(problem_of_pattern("layers.3-0"), HasSubstr("3-0, which is empty"));
}

}  // namespace
}  // namespace zeroshard
