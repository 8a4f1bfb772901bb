#include <numeric>
#include <optional>

#include "plan/matrix_plan.h"
#include "world/support.h"

namespace zeroshard::test {
namespace {

Scenario muon(int world_size, int stage, bool gram) {
  Scenario scenario = make_scenario(world_size, stage);
  scenario.config.optimizer->type = OptimizerConfig::Type::kMuon;
  scenario.config.optimizer->momentum = 0.9;
  scenario.config.optimizer->nesterov = true;
  scenario.config.optimizer->ns_gram = gram;
  return scenario;
}

class Matrices : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Muon, Matrices, ::testing::Values(1, 2, 3, 4, 7));

TEST_P(Matrices, EveryStageGivesTheSameBitsInThePlannedMemory) {
  for (const bool gram : {false, true}) {
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
      std::optional<Result> first;
      for (const int stage : {0, 1, 2, 3}) {
        Scenario scenario = muon(GetParam(), stage, gram);
        scenario.config.compute_dtype = dtype;
        scenario.config.grad_accumulation_steps = gram ? 2 : 1;
        scenario.model.unused = scenario.model.frozen = true;
        const Result result = train(scenario);
        ASSERT_TRUE(result.values.defined());
        for (const MemoryLine& line : result.memory)
          EXPECT_EQ(line.measured_peak, line.planned) << line.category << ", " << scenario.text();
        if (!first) first = result;
        EXPECT_TRUE(result.values.equal(first->values)) << scenario.text();
      }
    }
  }
}

// The pieces of a matrix do not come in the order of ranks there.
TEST(Muon, GroupsThatShareStatesGiveTheBitsOfOneGroup) {
  for (const int world_size : {2, 4}) {
    for (const int group : {1, 2}) {
      if (group == world_size) continue;
      Scenario scenario = muon(world_size, 3, /*gram=*/group == 1);
      Scenario shared = scenario;
      shared.config.shard_size = group;
      shared.config.groups_share_states = true;
      expect_same_training(scenario, shared);
    }
  }
}

// A matrix without a gradient on any rank stays as it is, and so does its momentum.
TEST(Muon, LeftOutMatricesChangeNothing) {
  std::optional<Result> first;
  for (const int stage : {0, 2, 3}) {
    Scenario scenario = muon(3, stage, /*gram=*/false);
    scenario.steps = 6;
    scenario.skip = [](int, int step, size_t unit) { return step % 3 == 1 && unit == 2; };
    const Result result = train(scenario);
    if (!first) first = result;
    EXPECT_TRUE(result.values.equal(first->values)) << scenario.text();
  }
}

// Of the collectives of a step: the bytes are those of the plan, there and back.
TEST(Muon, MatricesTravelOnceThereAndBack) {
  for (const int world_size : {2, 3, 4}) {
    for (const int stage : {0, 1, 3}) {
      const Scenario scenario = muon(world_size, stage, /*gram=*/false);
      std::vector<UnitLayout> units;
      for (const UnitDefinition& unit : Model(scenario.model, 0).definitions()) {
        std::vector<ParamSpec> params;
        for (const ParamDefinition& param : unit.params)
          params.push_back({param.names, param.shape, DType::kFloat32, true, param.shape.size() > 1});
        units.push_back(make_unit_layout(unit.name, std::move(params), world_size));
      }
      PlanOptions plan;
      plan.world_size = world_size;
      plan.stage = stage;
      const std::vector<MatrixBatch> batches = matrix_batches(units, place(units, plan), world_size);
      ASSERT_EQ(batches.size(), 1U);
      std::vector<RecordingComm*> reduces;
      ThreadWorld world(scenario, [&](Comm& comm, bool is_gather) {
        auto recording = std::make_unique<RecordingComm>(comm);
        if (!is_gather) reduces.push_back(recording.get());
        return recording;
      });
      const auto errors = world.run([&](Rank& rank) {
        at::set_num_threads(1);
        rank.make_engine();
        rank.train_step(0);
        RecordingComm& own = *reduces[size_t(rank.gather.rank())];
        own.reset();
        rank.train_step(1);
        int64_t numel = 0;
        for (int peer = 0; peer < world_size; ++peer)
          numel += batches[0].counts[size_t(own.rank() * world_size + peer)] +
                   batches[0].counts[size_t(peer * world_size + own.rank())];
        EXPECT_EQ(own.bytes(OpKind::kAllToAllV), numel * element_size(DType::kBFloat16)) << scenario.text();
        EXPECT_EQ(own.count(OpKind::kAllToAllV), 2) << scenario.text();
        rank.gather.barrier("end");
      });
      for (const std::string& error : errors) EXPECT_EQ(error, "");
    }
  }
}

TEST(Muon, IsRefusedWithoutAMatrixBeforeAnythingIsAllocated) {
  ThreadWorld world(make_scenario(2, 2));
  const auto errors = world.run([&](Rank& rank) {
    EngineOptions options;
    options.config = muon(2, 2, false).config;
    std::vector<UnitDefinition> units = rank.model.definitions();
    for (UnitDefinition& unit : units)
      for (ParamDefinition& param : unit.params) param.names = {"embed." + param.names.front()};
    rank.engine = std::make_unique<Engine>(std::move(units), std::move(options), rank.gather, rank.reduce);
  });
  for (const std::string& error : errors)
    EXPECT_NE(error.find("Muon has no matrix to orthogonalise"), std::string::npos) << error;
}

// Every call of a communicator in turn fails on one rank: all ranks end.
TEST(Muon, ARankThatFailsEndsAll) {
  for (int64_t at = 1; at < 200; at += 7) {
    Scenario scenario = muon(3, 2, false);
    scenario.steps = 2;
    std::vector<FaultComm*> faults;
    ThreadWorld world(scenario, [&](Comm& comm, bool is_gather) -> std::unique_ptr<Comm> {
      auto fault = std::make_unique<FaultComm>(comm, !is_gather && comm.rank() == 1 ? at : 1'000'000);
      faults.push_back(fault.get());
      return fault;
    });
    const auto errors = world.run([](Rank& rank) { rank.train(); });
    if (errors[1].empty()) return;
    for (const std::string& error : errors) EXPECT_NE(error, "") << at;
  }
}

}  // namespace
}  // namespace zeroshard::test
