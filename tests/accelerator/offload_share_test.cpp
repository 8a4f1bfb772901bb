// Engines on simulated devices of whose optimizer states a part is on the host or in files: host and device update each
// its own.
#include <gmock/gmock.h>

#include "accelerator/offload_support.h"
#include "file/support.h"

namespace zeroshard::accelerator {
namespace {

using test::kWidth;
using test::Scenario;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using testing::TemporaryDirectory;

class ShareOffload : public ::testing::TestWithParam<std::tuple<Schedule, int, int>> {
 protected:
  void SetUp() override { begin_on_devices(std::get<0>(GetParam()), /*seed=*/13); }
  void TearDown() override { end_on_devices(); }
  static int stage() { return std::get<2>(GetParam()); }
  static Scenario scenario(DType dtype = DType::kFloat32) {
    Scenario made = test::make_scenario(std::get<1>(GetParam()), stage());
    made.config.compute_dtype = dtype;
    made.model.ballast = 9'000;
    made.steps = 3;
    return made;
  }
  Scenario share(Scenario scenario, OffloadDevice place = OffloadDevice::kCpu, double ratio = 0.4) const {
    scenario.config.offload_optimizer = {.device = place, .ratio = ratio, .nvme_path = {directory_.path()}};
    return on_devices(std::move(scenario));
  }
  // As much of the states as without offload, on two tiers; fp32 parameters are the master weights of the part that the
  // device updates.
  void expect_the_same_bits(const Scenario& scenario, OffloadDevice place, double ratio = 0.4) const {
    const std::string away = place == OffloadDevice::kCpu ? "host" : "file";
    const test::Result without = test::train(on_devices(scenario));
    const test::Result result = expect_bits_of(scenario, share(scenario, place, ratio));
    const int64_t all = planned(without, "moments", "device"), left = planned(result, "moments", away);
    EXPECT_GE(double(left), ratio * double(all)) << scenario.text();
    EXPECT_EQ(planned(result, "moments", "device"), all - left) << scenario.text();
    const int64_t masters = planned(without, "master weights", "device");
    EXPECT_EQ(planned(result, "master weights", away), left / 2) << scenario.text();
    EXPECT_EQ(planned(result, "master weights", "device"), masters == 0 ? 0 : masters - left / 2) << scenario.text();
    EXPECT_EQ(planned(result, "gradients", "device"), planned(without, "gradients", "device")) << scenario.text();
    EXPECT_EQ(planned(result, "gradients", "host"), 0) << scenario.text();
  }

  TemporaryDirectory directory_;
};

INSTANTIATE_TEST_SUITE_P(Schedules, ShareOffload, ::testing::ValuesIn(cases_of_all_stages()));

TEST_P(ShareOffload, GivesTheSameBitsInThePlannedMemory) {
  for (const OffloadDevice place : {OffloadDevice::kCpu, OffloadDevice::kNvme}) {
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
      expect_the_same_bits(scenario(dtype), place);
      Scenario accumulating = scenario(dtype);
      accumulating.steps = 2;
      accumulating.config.grad_accumulation_steps = 3;
      expect_the_same_bits(accumulating, place, 0.7);
    }
  }
}

TEST_P(ShareOffload, OtherModelsAndOptimizers) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    Scenario gaps = scenario(dtype);
    gaps.model.frozen = gaps.model.unused = true;
    expect_the_same_bits(gaps, OffloadDevice::kCpu);
    Scenario whole = scenario(dtype);
    whole.config.persistence_threshold = 1'000'000;
    expect_the_same_bits(whole, OffloadDevice::kCpu, 0.7);
    for (const OffloadDevice place : {OffloadDevice::kCpu, OffloadDevice::kNvme}) {
      Scenario plain = scenario(dtype);  // the device's part has no states at all where parameters are fp32
      plain.config.optimizer->type = OptimizerConfig::Type::kSgd;
      plain.config.optimizer->momentum = 0;
      expect_bits_of(plain, share(plain, place));
    }
  }
}

TEST_P(ShareOffload, TheHostWaitsForTheAgreementAlone) {
  expect_a_wait_for_the_agreement_alone(share(scenario(DType::kBFloat16)));
}

TEST_P(ShareOffload, AnEngineMayGoAtAnyTime) {
  expect_an_engine_may_go(share(scenario(DType::kBFloat16)));
}

TEST_P(ShareOffload, StreamsOfTheUsersGiveTheSameBits) {
  expect_the_same_bits_on_own_streams(share(scenario(DType::kBFloat16)));
}

TEST_P(ShareOffload, GradientsAreReadAndSet) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16})
    expect_the_same_gradients(on_devices(scenario(dtype)), share(scenario(dtype)));
  expect_no_race(scenario());
}

// What users write to whole parameters, and weights that are set, count from the next step on, on both sides.
TEST_P(ShareOffload, WritesOfUsersCount) {
  for (const OffloadDevice place : {OffloadDevice::kCpu, OffloadDevice::kNvme}) {
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
      std::vector<at::Tensor> values;
      for (const bool offloads : {false, true}) {
        test::ThreadWorld world(offloads ? share(scenario(dtype), place) : on_devices(scenario(dtype)));
        const auto errors = world.run([](test::Rank& rank) {
          train_without_waits(rank, [](test::Rank& of, int step) {
            const at::NoGradGuard no_grad;
            if (step == 1 && of.scenario.config.stage < 3) of.model.params()[2][0].data().mul_(1.5);
            if (step == 1 && of.scenario.config.stage < 3) of.model.params()[2][4].data().mul_(1.5);
            set_weights(of, step);
            of.engine->set_weights(1, 4, 0, at::full({9'000}, 0.01 * (step + 1), at::kFloat));
          });
        });
        ASSERT_THAT(errors, Each(""));
        values.push_back(world.rank(0).result.values);
      }
      EXPECT_TRUE(values[0].equal(values[1])) << name_of(dtype);
    }
  }
  expect_no_race(scenario());
}

// A part of a parameter's states on the host is saved, and loaded on the device, and the other way round.
TEST_P(ShareOffload, CheckpointsGoBetweenTiers) {
  for (const OffloadDevice other : {OffloadDevice::kNone, OffloadDevice::kNvme}) {
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
      for (const bool saves_share : {false, true}) {
        const TemporaryDirectory root;
        const auto place = [&](const Scenario& made, bool is_share) {
          return is_share ? share(made) : share(made, other, 0.7);
        };
        const Scenario saving = place(scenario(dtype), saves_share);
        const SavedRun run = train_and_save(saving, root.path());
        Scenario loaded = scenario(dtype);
        loaded.config.stage = stage() % 3 + 1;
        const Scenario loading = place(loaded, !saves_share);
        expect_same_end(loading, run, [&](test::SavingRank& rank) {
          rank.train_step(loading, 0);
          EXPECT_NE(rank.engine->load_checkpoint(root.path()), std::nullopt);
        });
      }
    }
  }
  expect_no_race(scenario());
}

// Users write to whole parameters, which are master weights on the device, right before a save and right after.
void expect_saves_have_what_the_state_was(const Scenario& saving, bool is_whole, bool async) {
  const TemporaryDirectory root;
  const auto write = [&](test::SavingRank& rank, double factor) {
    const at::NoGradGuard no_grad;
    for (const size_t unit : {size_t{1}, size_t{3}})
      if (is_whole) rank.model->params()[unit][4].data().mul_(factor);
  };
  const auto errors = run_saving(saving, [&](test::SavingRank& rank) {
    rank.train_step(saving, 0);
    write(rank, 1.5);
    const at::Tensor then = rank.values();
    SaveOptions options;
    options.async = async;
    rank.engine->save_checkpoint(root.path(), "a", 1, {}, options);
    write(rank, 0.5);
    rank.engine->set_weights(2, 0, 0, at::full({kWidth * kWidth}, 0.5, at::kFloat));
    rank.train_step(saving, 1);
    rank.engine->wait_for_checkpoint();
    EXPECT_NE(rank.engine->load_checkpoint(root.path()), std::nullopt);
    EXPECT_TRUE(rank.values().equal(then));
  });
  EXPECT_THAT(errors, Each(""));
}

TEST_P(ShareOffload, SavesHaveWhatTheStateWas) {
  for (const OffloadDevice place : {OffloadDevice::kCpu, OffloadDevice::kNvme})
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16})
      for (const bool async : {false, true})
        expect_saves_have_what_the_state_was(share(scenario(dtype), place), stage() < 3, async);
  expect_no_race(scenario());
}

TEST_P(ShareOffload, WhatCannotBeIsRefused) {
  const auto refused = [](const Scenario& made, const std::string& outside = "") {
    test::ThreadWorld world(made);
    return world.run([&](test::Rank& rank) {
      EngineOptions options;
      options.config = rank.scenario.config;
      options.device = rank.scenario.device_of(rank.gather.rank());
      options.external_optimizer = outside;
      rank.engine = std::make_unique<Engine>(rank.model.definitions(), std::move(options), rank.gather, rank.reduce);
    });
  };
  Scenario gradients = share(scenario());
  gradients.config.offload.gradients = OffloadConfig::Gradients::kCpu;
  EXPECT_THAT(refused(gradients), Each(AllOf(HasSubstr("offload.gradients = \"cpu\": "), HasSubstr("ratio is 0.4"))));
  EXPECT_THAT(refused(share(scenario()), "Adagrad"),
              Each(AllOf(HasSubstr("offload_optimizer.ratio = 0.4: "), HasSubstr("Adagrad is an optimizer of your"))));
}

}  // namespace
}  // namespace zeroshard::accelerator
