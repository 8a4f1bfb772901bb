#include <gmock/gmock.h>
#include <unistd.h>

#include <filesystem>

#include "file/open_swap_files.h"
#include "file/support.h"
#include "world/support.h"

// Reduced gradients in swap files, beside the optimizer's states.
namespace zeroshard::test {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::Each;
using testing::flip_bits;
using ::testing::HasSubstr;
using testing::swap_files_in;
using testing::TemporaryDirectory;

Scenario in_files(Scenario scenario, const TemporaryDirectory& directory, int buffer_count = 2, double ratio = 1) {
  scenario.config.offload_optimizer = {.device = OffloadOptimizerConfig::Device::kNvme,
                                       .ratio = ratio,
                                       .nvme_path = {directory.path()},
                                       .buffer_count = buffer_count};
  scenario.config.offload.gradients = OffloadConfig::Gradients::kNvme;
  return scenario;
}

// The same bits and norms in the planned memory, none of which is for reduced gradients.
void expect_same_gradients(const Scenario& scenario, const Scenario& swapped, bool plan_holds = true) {
  const Result result = expect_same_training(scenario, swapped, plan_holds);
  if (!plan_holds || ::testing::Test::HasFailure()) return;
  EXPECT_EQ(peak_of(result, "gradients", "device"), 0) << swapped.text();
  EXPECT_GT(peak_of(result, "gradients", "file"), 0) << swapped.text();
}

class GradientFiles : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, GradientFiles, ::testing::Values(1, 2, 3, 4));

TEST_P(GradientFiles, GiveTheSameBitsInThePlannedMemory) {
  const TemporaryDirectory directory;
  for (const int stage : {1, 2, 3}) {
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
      for (const int64_t accumulation : {1, 3}) {
        Scenario scenario = make_scenario(GetParam(), stage);
        scenario.config.compute_dtype = dtype;
        scenario.config.grad_accumulation_steps = accumulation;
        scenario.config.gradient_clipping = 0.01;
        scenario.model.frozen = accumulation == 3;
        scenario.model.ballast = 20'000;
        scenario.steps = 3;
        for (const double ratio : {0.3, 1.0})
          expect_same_gradients(scenario, in_files(scenario, directory, stage == 2 ? 1 : 3, ratio));
      }
    }
  }
  EXPECT_TRUE(std::filesystem::is_empty(directory.path()));
}

// Units of several chunks, whose last one is not full; sums in 16 bits; parameters in files, too.
TEST_P(GradientFiles, OfLargeUnits) {
  const TemporaryDirectory directory;
  Scenario scenario = make_scenario(GetParam(), 3);
  scenario.config.compute_dtype = DType::kBFloat16;
  scenario.config.grad_accumulation_steps = 2;
  scenario.config.grad_accum_dtype = DType::kBFloat16;
  scenario.model.ballast = 2'300'000;
  scenario.steps = 2;
  Scenario swapped = in_files(scenario, directory);
  swapped.config.offload_param = {.device = OffloadDevice::kNvme, .nvme_path = {directory.path()}, .max_in_memory = 0};
  expect_same_gradients(scenario, swapped);
}

TEST_P(GradientFiles, PassesThatDifferAndUnusedParametersChangeNothing) {
  const TemporaryDirectory directory;
  for (const int stage : {2, 3}) {
    Scenario scenario = make_scenario(GetParam(), stage);
    scenario.model.unused = scenario.model.frozen = true;
    scenario.steps = 6;
    scenario.skip = [](int, int step, size_t unit) { return step % 3 == 1 && unit == 2; };
    expect_same_gradients(scenario, in_files(scenario, directory), /*plan_holds=*/false);
    scenario.skip = {};
    scenario.counts_aside = [](int rank, int step) { return (rank + step) % 2 == 0; };
    expect_same_gradients(scenario, in_files(scenario, directory, 1), /*plan_holds=*/false);
    scenario.no_sync = true;
    scenario.config.grad_accumulation_steps = 2;
    expect_same_gradients(scenario, in_files(scenario, directory), /*plan_holds=*/false);
  }
}

TEST_P(GradientFiles, StepsThatOverflowAreSkipped) {
  const TemporaryDirectory directory;
  for (const int stage : {1, 3}) {
    const Scenario scenario = skipping_a_step(make_scenario(GetParam(), stage));
    expect_same_gradients(scenario, in_files(scenario, directory));
  }
}

// Between backward and step, and after it; those that are set count.
TEST_P(GradientFiles, AreReadAndSet) {
  const TemporaryDirectory directory;
  for (const int stage : {1, 3}) {
    Scenario plain = make_scenario(GetParam(), stage);
    plain.model.ballast = 5'000;
    std::vector<std::vector<at::Tensor>> seen;
    for (const Scenario& scenario : {plain, in_files(plain, directory)}) {
      std::vector<at::Tensor>& of_rank_0 = seen.emplace_back();
      ThreadWorld world(scenario);
      const auto errors = world.run([&](Rank& rank) {
        at::set_num_threads(1);
        rank.make_engine();
        const auto see = [&](const std::optional<at::Tensor>& grad) {
          ASSERT_TRUE(grad.has_value());
          if (rank.gather.rank() == 0) of_rank_0.push_back(grad->clone());
        };
        for (int step = 0; step < 2; ++step) {
          rank.engine->begin_forward(/*training=*/true);
          rank.engine->backward(loss_of(rank.model, rank.scenario, rank.gather.rank(), step, 0, rank.engine.get()));
          see(rank.engine->full_grad(1, 0));
          see(rank.engine->local_grad(2, 0));
          const at::Tensor grad = *rank.engine->full_grad(3, 0);
          const int64_t share = rank.engine->local_grad(3, 0)->numel();
          if (share == grad.numel()) rank.engine->set_grad(3, 0, 0, grad.mul(0.25));
          see(rank.engine->full_grad(3, 0));
          const auto norms = rank.engine->grad_norms();
          see(at::full({}, norms.at(0).second, at::kDouble));
          rank.result.steps.push_back(rank.engine->step());
          see(rank.engine->full_grad(3, 0));
          see(at::full({}, rank.result.steps.back().grad_norm, at::kDouble));
        }
        rank.finish();
      });
      ASSERT_THAT(errors, Each(""));
      of_rank_0.push_back(world.rank(0).result.values);
    }
    ASSERT_EQ(seen[0].size(), seen[1].size());
    for (size_t i = 0; i < seen[0].size(); ++i) EXPECT_TRUE(seen[0][i].equal(seen[1][i])) << i << ", stage " << stage;
  }
}

TEST(GradientFileFaults, DamageOnOneRankEndsEveryRankWithTheUnit) {
  for (const int64_t accumulation : {1, 2}) {  // the update, or the next micro-batch, reads them
    const TemporaryDirectory directory;
    Scenario plain = make_scenario(3, 2);
    plain.model.ballast = 20'000;
    plain.config.grad_accumulation_steps = accumulation;
    ThreadWorld world(in_files(plain, directory, 1));
    const std::vector<std::string> errors = world.run([&](Rank& rank) {
      at::set_num_threads(1);
      rank.make_engine();
      rank.train_step(0);
      rank.engine->begin_forward(/*training=*/true);
      rank.engine->backward(loss_of(rank.model, rank.scenario, rank.gather.rank(), 1, 0, rank.engine.get()));
      rank.reduce.barrier("before");
      if (rank.reduce.rank() == 1)
        for (const UniqueFd& file : swap_files_in(directory.path())) flip_bits(file.get());
      rank.reduce.barrier("after");
      if (accumulation == 2) {
        rank.engine->begin_forward(/*training=*/true);
        rank.engine->backward(loss_of(rank.model, rank.scenario, rank.gather.rank(), 1, 1, rank.engine.get()));
      }
      rank.engine->step();
      rank.reduce.barrier("end");
    });
    for (const std::string& error : errors) {
      EXPECT_THAT(error, AllOf(HasSubstr("cannot use what was read from the swap file in "),
                               HasSubstr(directory.path()), HasSubstr("group ")))
          << accumulation;
      if (accumulation == 2) {
        EXPECT_THAT(error, ContainsRegex("gradients of group . of unit 'unit .'"));
      }
    }
  }
}

TEST(GradientFileFaults, WithoutStatesInFilesTheyAreRefused) {
  const TemporaryDirectory directory;
  const auto refused = [&](const auto& change) {
    Scenario scenario = in_files(make_scenario(2, 2), directory);
    change(scenario.config);
    ThreadWorld world(scenario);
    return world.run([](Rank& rank) {
      EXPECT_THROW(rank.make_engine(), ConfigError);
      rank.make_engine();
    });
  };
  EXPECT_THAT(refused([](Config& config) { config.offload_optimizer.device = OffloadDevice::kCpu; }),
              Each(AllOf(HasSubstr("zeroshard.offload.gradients = \"nvme\": "),
                         HasSubstr("offload_optimizer.device is \"cpu\": set that to \"nvme\", with an nvme_path"))));
  EXPECT_THAT(refused([](Config& config) { config.offload_optimizer.ratio = 0; }),
              Each(HasSubstr("offload_optimizer.ratio is 0: set that to 1")));
}

}  // namespace
}  // namespace zeroshard::test
