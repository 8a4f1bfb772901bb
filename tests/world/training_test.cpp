#include <ATen/ops/allclose.h>
#include <ATen/ops/zeros_like.h>

#include <optional>

#include "world/support.h"

namespace zeroshard::test {
namespace {

constexpr int kWorlds[] = {1, 2, 3, 4, 7};
constexpr int64_t kAll = 1'000'000;  // a persistence threshold above every unit

void expect_plan_holds(const Scenario& scenario, const Result& result) {
  EXPECT_FALSE(result.memory.empty());
  for (const MemoryLine& line : result.memory)
    EXPECT_EQ(line.measured_peak, line.planned) << line.category << ", " << scenario.text();
}

// Runs every stage, with overlap and persistence, and holds their values and norms bitwise equal.
void expect_stages_agree(Scenario scenario, bool plan_holds = true) {
  std::optional<Result> first;
  for (const int stage : {0, 1, 2, 3}) {
    for (const auto& [overlap, threshold] :
         std::vector<std::pair<bool, int64_t>>{{true, 0}, {false, 0}, {true, kAll}}) {
      if (stage < 3 && threshold == kAll) continue;  // the same as without
      scenario.config.stage = stage;
      scenario.config.overlap_comm = overlap;
      scenario.config.persistence_threshold = threshold;
      const Result result = train(scenario);
      if (::testing::Test::HasFailure()) return;
      if (plan_holds) expect_plan_holds(scenario, result);
      if (!first) first = result;
      EXPECT_TRUE(result.values.equal(first->values)) << scenario.text();
      for (size_t i = 0; i < result.steps.size(); ++i) {
        EXPECT_EQ(result.steps[i].grad_norm, first->steps[i].grad_norm) << scenario.text() << ", step " << i;
      }
    }
  }
}

class Worlds : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Training, Worlds, ::testing::ValuesIn(kWorlds));

TEST_P(Worlds, EveryStageGivesTheSameBitsInThePlannedMemory) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    for (const int64_t accumulation : {1, 2}) {
      Scenario scenario = make_scenario(GetParam(), 0);
      scenario.config.compute_dtype = dtype;
      scenario.config.grad_accumulation_steps = accumulation;
      scenario.model.frozen = accumulation == 2;
      expect_stages_agree(scenario);
    }
  }
}

TEST_P(Worlds, LeftOutUnitsAndUnusedParametersChangeNothing) {
  Scenario scenario = make_scenario(GetParam(), 0);
  scenario.model.unused = scenario.model.frozen = true;
  scenario.steps = 6;
  scenario.skip = [](int, int step, size_t unit) {
    return step % 3 == 1 && unit == 2;
  };  // a deviation from the recorded order
  // Not in the planned memory: the buckets after the one of a left-out unit wait for their turn until backward ends.
  expect_stages_agree(scenario, /*plan_holds=*/false);
}

TEST_P(Worlds, NoSyncGivesTheSameBitsAtEveryStage) {
  Scenario scenario = make_scenario(GetParam(), 0);
  scenario.no_sync = true;
  scenario.config.grad_accumulation_steps = 3;
  scenario.config.compute_dtype = DType::kBFloat16;
  scenario.steps = 3;
  expect_stages_agree(scenario, /*plan_holds=*/false);  // local sums are memory that the user asks for by no_sync
}

// Plain autograd on one copy of the model, and AdamW and clipping by their formulas, in fp64.
at::Tensor reference(const Scenario& scenario, std::vector<double>& norms) {
  const Config& config = scenario.config;
  const Model model(scenario.model, /*seed=*/0);
  std::vector<at::Tensor> params, sums, firsts, seconds;
  for (const auto& unit : model.params()) {
    for (const at::Tensor& param : unit) {
      params.push_back(param);
      for (auto* list : {&firsts, &seconds}) list->push_back(at::zeros_like(param, at::kDouble).detach());
    }
  }
  for (int step = 0; step < scenario.steps; ++step) {
    sums.clear();
    double squares = 0;
    for (int rank = 0; rank < scenario.world_size; ++rank) {
      for (int micro = 0; micro < int(config.grad_accumulation_steps); ++micro) {
        loss_of(model, scenario, rank, step, micro, nullptr).backward();
      }
    }
    for (const at::Tensor& param : params) {
      sums.push_back(param.grad().to(at::kDouble) / double(scenario.world_size * config.grad_accumulation_steps));
      squares += sums.back().square().sum().item<double>();
      param.mutable_grad().reset();
    }
    norms.push_back(std::sqrt(squares));
    const double clip = std::min(1.0, config.gradient_clipping / (norms.back() + 1e-6));
    const OptimizerConfig& o = *config.optimizer;
    for (size_t i = 0; i < params.size(); ++i) {
      const at::Tensor grad = sums[i] * clip;
      firsts[i] = firsts[i] * o.beta1 + grad * (1 - o.beta1);
      seconds[i] = seconds[i] * o.beta2 + grad.square() * (1 - o.beta2);
      const at::Tensor direction = (firsts[i] / (1 - std::pow(o.beta1, step + 1))) /
                                   ((seconds[i] / (1 - std::pow(o.beta2, step + 1))).sqrt() + o.eps);
      const at::Tensor old = params[i].detach();
      old.copy_(old * (1 - o.lr * o.weight_decay) - direction * o.lr);
    }
  }
  std::vector<at::Tensor> values;
  for (const at::Tensor& param : params) values.push_back(param.detach().reshape({-1}));
  return at::cat(values);
}

TEST(Training, AgreesWithPlainAutogradAndAdamW) {
  for (const int world_size : {1, 3}) {
    for (const int stage : {0, 3}) {
      for (const int64_t accumulation : {1, 2}) {
        Scenario scenario = make_scenario(world_size, stage);
        scenario.config.grad_accumulation_steps = accumulation;
        std::vector<double> norms;
        const at::Tensor expected = reference(scenario, norms);
        const Result result = train(scenario);
        ASSERT_TRUE(result.values.defined());
        // Adam's first steps have the size of lr whatever the gradient: rounding of tiny gradients shows at 1e-5.
        EXPECT_TRUE(at::allclose(result.values, expected, 1e-4, 2e-5))
            << scenario.text() << ": " << (result.values - expected).abs().max().item<double>();
        for (size_t i = 0; i < norms.size(); ++i) EXPECT_NEAR(result.steps[i].grad_norm, norms[i], 1e-4 * norms[i]);
      }
    }
  }
}

TEST(Training, DelaysChangeNothing) {
  for (const int stage : {0, 2, 3}) {
    Scenario scenario = make_scenario(3, stage);
    scenario.config.grad_accumulation_steps = 2;
    scenario.steps = 3;
    const Result expected = train(scenario);
    for (uint64_t seed = 0; seed < 3; ++seed) {
      const Result delayed =
          train(scenario, [&](Comm& comm, bool) { return std::make_unique<DelayComm>(comm, seed, /*max_us=*/300); });
      ASSERT_TRUE(delayed.values.defined());
      EXPECT_TRUE(delayed.values.equal(expected.values)) << scenario.text() << ", seed " << seed;
    }
  }
}

TEST(Training, RanksMayLeaveOutDifferentUnitsWhileParametersAreReplicated) {
  std::optional<Result> first;
  for (const int stage : {0, 1, 2}) {
    Scenario scenario = make_scenario(3, stage);
    scenario.skip = [](int rank, int step, size_t unit) { return unit == size_t(1 + (rank + step) % 3); };
    const Result result = train(scenario);
    ASSERT_TRUE(result.values.defined());
    if (!first) first = result;
    EXPECT_TRUE(result.values.equal(first->values)) << scenario.text();
  }
}

// The head is sharded, small and so whole, or whole by a rule. It may be of no use to a rank but for that.
TEST(Training, AUseOfAUnitMayEnterTheLossOnSomeRanksAlone) {
  for (const bool is_head_of_all : {true, false}) {
    std::vector<Result> results;
    for (const auto& [stage, threshold, rules] : std::vector<std::tuple<int, int64_t, std::vector<PlacementRule>>>{
             {1, 0, {}}, {2, 0, {}}, {3, 0, {}}, {3, 1500, {}}, {3, 0, {{"unit 4", true}}}}) {
      Scenario scenario = make_scenario(3, stage);
      scenario.config.persistence_threshold = threshold;
      scenario.config.placement = rules;
      scenario.counts_aside = [](int rank, int step) { return rank == step % 3; };
      if (!is_head_of_all) scenario.skip = [](int, int, size_t unit) { return unit == kBlocks; };
      results.push_back(train(scenario));
      if (HasFailure()) return;
      EXPECT_TRUE(results.back().values.equal(results.front().values)) << scenario.text() << ", " << rules.size();
    }
  }
}

// From the second step on, the backward of one rank in turn needs the last unit alone: the order is known by then.
TEST(Training, ARankThatNeedsTheLastUnitAloneTakesPartInTheRest) {
  std::vector<at::Tensor> values;
  for (const int stage : {1, 3}) {
    const Scenario scenario = make_scenario(3, stage);
    ThreadWorld world(scenario);
    const auto errors = world.run([&](Rank& rank) {
      at::set_num_threads(1);
      rank.make_engine();
      const int own = rank.gather.rank();
      for (int step = 0; step < 4; ++step) {
        rank.engine->begin_forward(/*training=*/true);
        at::Tensor x = input_of(scenario, own, step, 0).to(to_scalar_type(scenario.config.compute_dtype));
        for (size_t u = 0; u < kUnits; ++u) {
          if (u + 1 == kUnits && step > 0 && own == step % 3) x = x.detach();
          x = rank.engine->unit(u, [&] { return rank.model.forward(u, x); });
        }
        rank.engine->backward(at::mse_loss(x.to(at::kFloat), target_of(own, step, 0)));
        rank.engine->step();
      }
      rank.finish();
    });
    for (const std::string& error : errors) EXPECT_EQ(error, "") << scenario.text();
    values.push_back(world.rank(0).result.values);
    ASSERT_FALSE(HasFailure());
  }
  EXPECT_TRUE(values[0].equal(values[1]));
}

TEST(Training, ANonFiniteGradientOfOneRankSkipsTheStepOnAll) {
  for (const int stage : {0, 1, 2, 3}) {
    Scenario scenario = make_scenario(3, stage);
    scenario.steps = 1;
    const Result before = train(scenario);
    scenario.steps = 2;
    scenario.input_scale = [](int rank, int step) { return rank == 2 && step == 1 ? INFINITY : 1.0F; };
    const Result after = train(scenario);
    ASSERT_TRUE(before.values.defined() && after.values.defined());
    EXPECT_TRUE(after.steps[0].applied);
    EXPECT_FALSE(after.steps[1].applied);
    EXPECT_TRUE(after.values.equal(before.values)) << scenario.text();
  }
}

TEST(Training, TooManySkippedStepsEndTheRunOnEveryRank) {
  Scenario scenario = make_scenario(2, 3);
  scenario.steps = 5;
  scenario.config.max_skipped_steps = 3;
  scenario.input_scale = [](int, int) { return NAN; };
  ThreadWorld world(scenario);
  for (const std::string& error : world.run([](Rank& rank) { rank.train(); })) {
    EXPECT_NE(error.find("3 steps in a row were skipped"), std::string::npos) << error;
  }
}

struct Counts {
  std::vector<int64_t> gathers, gathered_bytes, exchanges, all_reduces, others;  // per step
};

Counts count(const Scenario& scenario, int rank_to_count) {
  Counts counts;
  std::vector<RecordingComm*> gathers, reduces;
  ThreadWorld world(scenario, [&](Comm& comm, bool is_gather) {
    auto recording = std::make_unique<RecordingComm>(comm);
    (is_gather ? gathers : reduces).push_back(recording.get());
    return recording;
  });
  const auto errors = world.run([&](Rank& rank) {
    at::set_num_threads(1);
    rank.make_engine();
    RecordingComm &gather = *gathers[size_t(rank.gather.rank())], &reduce = *reduces[size_t(rank.gather.rank())];
    for (int step = 0; step < scenario.steps; ++step) {
      gather.reset();
      reduce.reset();
      rank.train_step(step);
      if (rank.gather.rank() != rank_to_count) continue;
      counts.gathers.push_back(gather.count(OpKind::kAllGather) + reduce.count(OpKind::kAllGather));
      counts.gathered_bytes.push_back(gather.bytes(OpKind::kAllGather) + reduce.bytes(OpKind::kAllGather));
      counts.exchanges.push_back(reduce.count(OpKind::kExchange));
      counts.all_reduces.push_back(reduce.count(OpKind::kAllReduce));
      counts.others.push_back(int64_t(gather.calls().size() + reduce.calls().size()) - counts.gathers.back() -
                              counts.exchanges.back() - counts.all_reduces.back());
    }
    rank.gather.barrier("end");
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
  return counts;
}

TEST(Training, CollectivesOfAStepAreAsFewAsCanBe) {
  constexpr auto kCount = int64_t(kUnits);
  for (const int stage : {0, 1, 2, 3}) {
    for (const int64_t accumulation : {1, 2}) {
      Scenario scenario = make_scenario(2, stage);
      scenario.config.grad_accumulation_steps = accumulation;
      SCOPED_TRACE(scenario.text());
      const Counts counts = count(scenario, 1);
      ASSERT_EQ(counts.gathers.size(), size_t(scenario.steps));
      for (int step = 0; step < scenario.steps; ++step) {
        const auto i = size_t(step);
        // Stage 3: for forward and for backward; the last unit stays in between once the order is recorded. Stages 1
        // and 2: after the update. Stage 0: the reduced gradients.
        const int64_t recording = step == 0 ? 1 : 0;
        EXPECT_EQ(counts.gathers[i], stage == 3 ? accumulation * (2 * kCount - 1) + recording : kCount) << step;
        EXPECT_EQ(counts.exchanges[i], accumulation * kCount) << step;
        EXPECT_EQ(counts.all_reduces[i], accumulation + 1) << step;  // after each backward, and in the step
        // The launch orders of forward and of backward; stage 3: which unit is next in backward.
        const int64_t agreed = stage == 3 ? kCount + 1 : 0;
        // Before users may write to what an update has refreshed.
        const int64_t barriers = stage == 1 || stage == 2 ? 1 : 0;
        EXPECT_EQ(counts.others[i], barriers + (step == 0 ? 2 + agreed : 0)) << step;
      }
    }
  }
}

TEST(Training, PersistentUnitsAreGatheredOncePerStep) {
  Scenario scenario = make_scenario(3, 3);
  scenario.config.grad_accumulation_steps = 2;
  scenario.config.persistence_threshold = kAll;
  for (const int64_t gathers : count(scenario, 0).gathers) EXPECT_EQ(gathers, int64_t(kUnits));
}

TEST(Training, AParameterWithoutAGradientCostsOneMoreAllReduce) {
  Scenario scenario = make_scenario(2, 2);
  scenario.model.unused = true;
  for (const int64_t all_reduces : count(scenario, 0).all_reduces) EXPECT_EQ(all_reduces, 3);
}

TEST(Training, StageThreeGathersTheUnitsBytes) {
  Scenario scenario = make_scenario(2, 3);
  const Counts counts = count(scenario, 0);
  int64_t all = 0, head = 0;
  for (size_t u = 0; u < kUnits; ++u) {
    const int64_t out = u < kBlocks ? kWidth : kOut, numel = out * kWidth + out + 2 * kWidth;
    const int64_t shard = ((numel + 1) / 2 + 1023) / 1024 * 1024;  // whole blocks of 1024 elements
    all += 2 * shard * 4;
    head = 2 * shard * 4;
  }
  EXPECT_EQ(counts.gathered_bytes[0], 2 * all);
  EXPECT_EQ(counts.gathered_bytes[1], 2 * all - head);
}

}  // namespace
}  // namespace zeroshard::test
