#include "plan/buffer_sizes.h"
#include "world/support.h"

namespace zeroshard::test {
namespace {

// Groups of `shard` ranks hold a replica each, of all states or, if the groups share the others, of the parameters.
Scenario in_groups(Scenario scenario, int shard, bool share_states = false) {
  scenario.config.shard_size = shard;
  scenario.config.groups_share_states = share_states;
  return scenario;
}

struct Mesh {
  int ranks, shard;
};

class Replicas : public ::testing::TestWithParam<Mesh> {};
INSTANTIATE_TEST_SUITE_P(Training, Replicas,
                         ::testing::Values(Mesh{2, 1}, Mesh{3, 1}, Mesh{4, 2}, Mesh{7, 1}, Mesh{8, 2}, Mesh{8, 4}),
                         [](const auto& info) {
                           return std::to_string(info.param.ranks) + "by" + std::to_string(info.param.shard);
                         });

TEST_P(Replicas, GiveTheBitsOfOneReplicaInThePlannedMemory) {
  const auto [ranks, shard] = GetParam();
  for (const int stage : {0, 1, 2, 3}) {
    for (const bool overlap : {true, false}) {
      Scenario scenario = make_scenario(ranks, stage);
      scenario.config.overlap_comm = overlap;
      scenario.config.compute_dtype = overlap ? DType::kBFloat16 : DType::kFloat32;
      scenario.config.grad_accumulation_steps = stage == 1 ? 2 : 1;
      scenario.model.frozen = stage == 3;
      expect_same_training(scenario, in_groups(scenario, shard));
    }
  }
}

TEST_P(Replicas, ThatShareStatesGiveTheBitsOfOneCopyInThePlannedMemory) {
  const auto [ranks, shard] = GetParam();
  for (const bool overlap : {true, false}) {
    for (const int accumulation : {1, 2}) {
      for (const int64_t persistence : {0, 100'000}) {
        Scenario scenario = make_scenario(ranks, 3);
        scenario.config.overlap_comm = overlap;
        scenario.config.compute_dtype = overlap ? DType::kBFloat16 : DType::kFloat32;
        scenario.config.grad_accumulation_steps = accumulation;
        scenario.config.persistence_threshold = persistence;
        scenario.model.frozen = true;
        scenario.model.ballast = 5 * kBlockNumel;  // so that every rank has elements
        expect_same_training(scenario, in_groups(scenario, shard, /*share_states=*/true));
        scenario.config.placement = {{"*", /*replicated=*/true}};
        expect_same_training(scenario, in_groups(scenario, shard, /*share_states=*/true));
      }
    }
  }
  for (const int stage : {0, 1, 2})  // all ranks are one group
    expect_same_training(make_scenario(ranks, stage), in_groups(make_scenario(ranks, stage), shard, true));
}

// A unit without gradients (below stage 3 on the ranks of one replica alone), a gradient that is late on some ranks,
// and sums under no_sync.
TEST_P(Replicas, GiveTheBitsOfOneReplicaInPassesThatDiffer) {
  const auto [ranks, shard] = GetParam();
  for (const int stage : {0, 2, 3}) {
    Scenario scenario = make_scenario(ranks, stage);
    scenario.model.unused = true;
    scenario.steps = 6;
    scenario.skip = [group = shard, stage](int rank, int step, size_t unit) {
      return step % 3 == 1 && unit == 2 && (stage == 3 || (rank / group) % 2 == 0);
    };
    const auto expect_same = [shard = shard](const Scenario& whole) {
      expect_same_training(whole, in_groups(whole, shard), /*plan_holds=*/false);
      if (whole.config.stage == 3) expect_same_training(whole, in_groups(whole, shard, true), /*plan_holds=*/false);
    };
    expect_same(scenario);
    scenario.skip = {};
    scenario.counts_aside = [](int rank, int step) { return (rank + step) % 2 == 0; };
    expect_same(scenario);
    scenario.counts_aside = {};
    scenario.no_sync = true;
    scenario.config.grad_accumulation_steps = 3;
    expect_same(scenario);
  }
}

// Sums of three ranks are no subtree of the sum of six, but the same at every stage.
TEST(Replicas, OfThreeRanksEachGiveTheSameBitsAtEveryStage) {
  const Scenario whole = in_groups(make_scenario(6, 0), 3);
  for (const int stage : {1, 2, 3}) expect_same_training(whole, in_groups(make_scenario(6, stage), 3));
  expect_same_training(whole, in_groups(make_scenario(6, 3), 3, /*share_states=*/true));
}

TEST(Replicas, DelaysAndStepsThatAreSkippedChangeNothing) {
  const Scenario scenario = skipping_a_step(make_scenario(4, 3));
  const Result expected = train(scenario);
  for (uint64_t seed = 0; seed < 6; ++seed) {
    const auto delay = [&](Comm& comm, bool) { return std::make_unique<DelayComm>(comm, seed, /*max_us=*/300); };
    const Result delayed = train(in_groups(scenario, 2, /*share_states=*/seed % 2 == 1), delay, delay);
    ASSERT_TRUE(delayed.values.defined());
    EXPECT_TRUE(delayed.values.equal(expected.values)) << "seed " << seed;
    EXPECT_FALSE(delayed.steps.at(1).applied);
  }
}

// Between replicas go fp32 sums of shards and nothing else, and each rank sends 2 (R - 1) / R of its own.
TEST(Replicas, ExchangeOnlySumsOfGradients) {
  for (const auto& [stage, is_coded] : std::vector<std::pair<int, bool>>{{0, false}, {3, false}, {3, true}}) {
    Scenario scenario = in_groups(make_scenario(4, stage), 2);
    scenario.config.quantized_gradients = is_coded;
    std::vector<RecordingComm*> across;
    ThreadWorld world(scenario, {}, [&](Comm& comm, bool is_all) -> std::unique_ptr<Comm> {
      auto recording = std::make_unique<RecordingComm>(comm);
      if (!is_all) across.push_back(recording.get());
      return recording;
    });
    world.train();
    int64_t bytes = 0;
    for (const auto& unit : world.rank(0).model.params()) {
      std::vector<int64_t> numels;
      for (const at::Tensor& param : unit) numels.push_back(param.numel());
      const int64_t sum =
          replica_sum_numel(ShardLayout(numels, /*world_size=*/2).shard_numel(), /*replicas=*/2, is_coded);
      bytes += scenario.steps * replica_sum_bytes(sum, /*replicas=*/2, is_coded);
    }
    for (const RecordingComm* const comm : across) {
      EXPECT_EQ(comm->bytes(OpKind::kExchange), bytes);
      EXPECT_EQ(comm->bytes(OpKind::kAllGather), bytes);
      for (const RecordingComm::Call& call : comm->calls())
        EXPECT_TRUE(call.kind == OpKind::kExchange || call.kind == OpKind::kAllGather || call.tag == "sums of replicas")
            << call.tag;
    }
  }
}

// Each rank sends (R - 1) / R of the sum of its shard in fp32, and of the shard in the dtype of the parameters.
TEST(Replicas, ThatShareStatesExchangeSumsAndUpdatedParameters) {
  for (const bool is_coded : {false, true}) {
    Scenario scenario = in_groups(make_scenario(4, 3), 2, /*share_states=*/true);
    scenario.config.compute_dtype = DType::kBFloat16;
    scenario.config.quantized_gradients = scenario.config.quantized_weights = is_coded;
    std::vector<RecordingComm*> across;
    ThreadWorld world(scenario, {}, [&](Comm& comm, bool is_all) -> std::unique_ptr<Comm> {
      auto recording = std::make_unique<RecordingComm>(comm);
      if (!is_all) across.push_back(recording.get());
      return recording;
    });
    world.train();
    int64_t sums = 0, parameters = 0;
    for (const auto& unit : world.rank(0).model.params()) {
      std::vector<int64_t> numels;
      for (const at::Tensor& param : unit) numels.push_back(param.numel());
      const int64_t shard = ShardLayout(numels, /*world_size=*/2, /*alignment=*/1, /*parts=*/2).shard_numel();
      sums += scenario.steps * replica_sum_bytes(shard, /*replicas=*/2, is_coded);
      parameters += scenario.steps * (is_coded ? replica_sum_bytes(shard, /*replicas=*/2, /*is_coded=*/true)
                                               : shard * element_size(DType::kBFloat16));
    }
    for (const RecordingComm* const comm : across) {
      EXPECT_EQ(comm->bytes(OpKind::kExchange), sums);
      EXPECT_EQ(comm->bytes(OpKind::kAllGather), parameters);
    }
  }
}

TEST(Replicas, SumsInEightBitsAreTheSameAtEveryStageAndNearTheExactOnes) {
  for (const int ranks : {4, 6}) {
    Scenario scenario = in_groups(make_scenario(ranks, 0), 2);
    const Result exact = train(scenario);
    scenario.config.quantized_gradients = true;
    for (const int stage : {1, 2, 3}) {
      Scenario other = scenario;
      other.config.stage = stage;
      other.config.overlap_comm = stage != 2;
      const Result coded = expect_same_training(scenario, other);
      ASSERT_TRUE(coded.values.defined());
      EXPECT_FALSE(coded.values.equal(exact.values));
      for (size_t i = 0; i < coded.steps.size(); ++i)
        EXPECT_NEAR(coded.steps[i].grad_norm, exact.steps[i].grad_norm, 0.01 * exact.steps[i].grad_norm);
    }
  }
}

// All ranks compute with the same parameters, whoever owns a part, and master weights follow the exact gradients of
// these.
TEST(Replicas, ParametersInEightBitsAreEqualOnAllRanksAndNearTheExactOnes) {
  for (const auto& [ranks, shard] : std::vector<Mesh>{{2, 1}, {4, 2}, {6, 2}, {8, 4}}) {
    for (const bool quantized_gradients : {false, true}) {
      Scenario scenario = in_groups(make_scenario(ranks, 3), shard, /*share_states=*/true);
      scenario.config.compute_dtype = DType::kBFloat16;
      scenario.config.overlap_comm = !quantized_gradients;
      const Result exact = train(scenario);
      scenario.config.quantized_weights = true;
      scenario.config.quantized_gradients = quantized_gradients;
      const Result coded = train(scenario);  // expects the same values on all ranks
      ASSERT_TRUE(coded.values.defined() && exact.values.defined());
      if (shard == 1) {  // every rank has all parameters, which users may write
        EXPECT_EQ(coded.values.equal(exact.values), !quantized_gradients);
        continue;
      }
      EXPECT_FALSE(coded.values.equal(exact.values));
      EXPECT_LT((coded.values - exact.values).abs().max().item<float>(), 0.05);
      for (const MemoryLine& line : coded.memory)
        EXPECT_EQ(line.measured_peak, line.planned) << line.category << " on " << line.tier;
    }
  }
}

// A parameter without a gradient shares blocks with neighbours that grow. It keeps its master weights, and so its value
// within the error of one rounding.
TEST(Replicas, ParametersInEightBitsWithoutAGradientStayNearTheirValues) {
  Scenario scenario = in_groups(make_scenario(4, 3), 2, /*share_states=*/true);
  scenario.config.compute_dtype = DType::kBFloat16;
  scenario.config.quantized_weights = true;
  scenario.config.optimizer->lr = 0.1;
  scenario.config.optimizer->weight_decay = 0;
  scenario.model.unused = true;
  scenario.steps = 60;
  const Result result = train(scenario);
  ASSERT_TRUE(result.values.defined());
  constexpr int64_t kUnitNumel = kWidth * (kWidth + 3), kUnused = 77;
  const at::Tensor unit = result.values.slice(0, 2 * kUnitNumel, 3 * kUnitNumel + kUnused);
  const at::Tensor before = random_tensor({kUnused}, 99), after = unit.slice(0, kUnitNumel, kUnitNumel + kUnused);
  const float largest = unit.abs().max().item<float>();
  EXPECT_GT(largest, 2);  // or the scale of the block does not change
  EXPECT_LT((after - before).abs().max().item<float>(), largest / 254 + 1.F / 256);
}

TEST(Replicas, SumsInEightBitsThatAreNotFiniteSkipTheStep) {
  Scenario scenario = in_groups(skipping_a_step(make_scenario(4, 3)), 2);
  scenario.config.quantized_gradients = true;
  const Result result = train(scenario);
  ASSERT_EQ(result.steps.size(), 5U);
  for (size_t i = 0; i < result.steps.size(); ++i) EXPECT_EQ(result.steps[i].applied, i != 1) << i;
}

class FailingReplicas : public ::testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Replicas, FailingReplicas, ::testing::Bool());

TEST_P(FailingReplicas, EveryFailingCallEndsEveryRank) {
  Scenario scenario = in_groups(make_scenario(4, 3), 2, /*share_states=*/GetParam());
  scenario.steps = 1;
  for (const bool is_all : {true, false}) {
    for (int64_t fail_at = 1;; ++fail_at) {
      ASSERT_LT(fail_at, 500);
      FaultComm* fault = nullptr;
      ThreadWorld world(scenario, {}, [&](Comm& comm, bool of_all) -> std::unique_ptr<Comm> {
        const bool bad = of_all == is_all && comm.rank() == 1 && fault == nullptr;
        auto decorated = std::make_unique<FaultComm>(comm, bad ? fail_at : INT64_MAX);
        if (bad) fault = decorated.get();
        return decorated;
      });
      const std::vector<std::string> errors = world.run([](Rank& rank) {
        rank.train();
        rank.replication.all->barrier("end");
      });
      if (fault->calls() < fail_at) {
        for (const std::string& error : errors) EXPECT_EQ(error, "");
        EXPECT_GT(fail_at, 5);
        break;
      }
      for (const std::string& error : errors) EXPECT_NE(error.find("injected fault"), std::string::npos) << error;
    }
  }
}

TEST(Replicas, CommunicatorsThatDoNotFitAreRefused) {
  auto all = make_local_world(4), pair = make_local_world(2);
  Model model({}, /*seed=*/1);
  EngineOptions options;
  options.config = make_scenario(4, 3).config;
  const ReplicaComms replication{all[0].get(), pair[0].get()};
  const auto single = make_single_comm();
  EXPECT_THROW(Engine(model.definitions(), options, *single, *single, nullptr, replication), ValueError);
}

}  // namespace
}  // namespace zeroshard::test
