// Engines on simulated devices whose updates come one step late: the bits of a run that computes each step with the
// parameters of the step before, and no wait that is missing.
#include <gmock/gmock.h>

#include "accelerator/placements.h"
#include "file/open_swap_files.h"
#include "file/support.h"
#include "reduce/grad_bucket.h"

namespace zeroshard::accelerator {
namespace {

using test::Scenario;
using ::testing::Each;
using ::testing::HasSubstr;
using testing::TemporaryDirectory;
using Weights = std::vector<std::vector<at::Tensor>>;  // [unit][parameter], fp32 on the CPU; undefined: not trained

Scenario delayed(Scenario scenario) {
  scenario.config.offload_optimizer.device = OffloadOptimizerConfig::Device::kCpu;
  scenario.config.offload.delayed_update = true;
  return on_devices(std::move(scenario));
}

Scenario delayed_in_files(Scenario scenario, const TemporaryDirectory& directory) {
  scenario = delayed(std::move(scenario));
  scenario.config.offload_optimizer.device = OffloadOptimizerConfig::Device::kNvme;
  scenario.config.offload_optimizer.nvme_path = {directory.path()};
  return scenario;
}

Weights weights_of(test::Rank& rank) {
  Weights all(test::kUnits);
  for (size_t u = 0; u < test::kUnits; ++u) {
    for (size_t i = 0; i < rank.model.params()[u].size(); ++i) {
      const auto slice = rank.engine->slice(u, i);
      const auto full = slice ? rank.engine->full_state(u, i, slice->master, "weights") : std::nullopt;
      all[u].push_back(full ? full->cpu().clone() : at::Tensor());
    }
  }
  return all;
}

void set_all(test::Rank& rank, const Weights& weights) {
  for (size_t u = 0; u < test::kUnits; ++u)
    for (size_t i = 0; i < weights[u].size(); ++i)
      if (weights[u][i].defined()) rank.engine->set_weights(u, i, 0, weights[u][i]);
}

at::Tensor flat(const Weights& weights) {
  std::vector<at::Tensor> values;
  for (const auto& unit : weights)
    for (const at::Tensor& each : unit)
      if (each.defined()) values.push_back(each.reshape({-1}));
  return at::cat(values);
}

struct Late {
  std::vector<double> norms;
  std::vector<bool> applied;
  at::Tensor published, updated;  // weights after the last step
};

// The definition, on an engine that updates at once: gradients of the weights before the last update, which the
// update of this step then starts from.
Late train_by_definition(const Scenario& scenario) {
  Late result;
  test::ThreadWorld world(scenario);
  const auto errors = world.run([&](test::Rank& rank) {
    at::set_num_threads(1);
    rank.make_engine();
    Weights published = weights_of(rank), updated = published;
    for (int step = 0; step < scenario.steps; ++step) {
      set_all(rank, published);
      const auto micro_batches = int(scenario.config.grad_accumulation_steps);
      for (int micro_batch = 0; micro_batch < micro_batches; ++micro_batch) {
        rank.engine->begin_forward(/*training=*/true);
        const at::Tensor loss =
            test::loss_of(rank.model, scenario, rank.gather.rank(), step, micro_batch, rank.engine.get());
        rank.engine->begin_backward(!scenario.no_sync || micro_batch + 1 == micro_batches);
        rank.engine->scale_loss(loss).backward();
        rank.engine->end_backward();
      }
      set_all(rank, updated);
      const StepResult done = rank.engine->step();
      published = std::exchange(updated, weights_of(rank));
      if (rank.gather.rank() > 0) continue;
      result.norms.push_back(done.applied ? done.grad_norm : -1);
      result.applied.push_back(done.applied);
    }
    if (rank.gather.rank() == 0) result.published = flat(published);
    if (rank.gather.rank() == 0) result.updated = flat(updated);
  });
  EXPECT_THAT(errors, Each("")) << scenario.text();
  return result;
}

// What users see of the parameters of trained units; all are trained.
at::Tensor seen(test::Rank& rank) {
  rank.finish();
  return rank.result.values;
}

void write_nothing(test::Rank& rank) {
  rank.engine->gather({0}, /*to_modify=*/true);
  rank.engine->release({0}, /*modify_rank=*/0);
}

void expect_the_definition(const Scenario& scenario, const Scenario& late) {
  const Late expected = train_by_definition(scenario);
  ASSERT_FALSE(::testing::Test::HasFailure());
  const auto rounded = [&](const at::Tensor& values) {
    return values.to(to_scalar_type(scenario.config.compute_dtype)).to(at::kFloat);
  };
  test::ThreadWorld world(late);
  const auto errors = world.run([&](test::Rank& rank) {
    at::set_num_threads(1);
    rank.make_engine();
    for (int step = 0; step < late.steps; ++step) rank.train_step(step);
    EXPECT_TRUE(seen(rank).equal(rounded(expected.published))) << scenario.text();
    EXPECT_TRUE(flat(weights_of(rank)).equal(expected.updated)) << scenario.text();
    write_nothing(rank);
    EXPECT_TRUE(seen(rank).equal(rounded(expected.updated))) << scenario.text();
  });
  ASSERT_THAT(errors, Each("")) << scenario.text();
  const test::Result& result = world.rank(0).result;
  for (size_t step = 0; step < result.steps.size(); ++step) {
    EXPECT_EQ(result.steps[step].applied, expected.applied[step]) << scenario.text();
    if (expected.applied[step]) {
      EXPECT_DOUBLE_EQ(result.steps[step].grad_norm, expected.norms[step]) << scenario.text() << ", step " << step;
    }
  }
  expect_as_planned(scenario, result);
  expect_no_race(scenario);
}

class DelayedUpdates : public ::testing::TestWithParam<std::tuple<Schedule, int, int>> {
 protected:
  void SetUp() override { begin_on_devices(std::get<0>(GetParam()), /*seed=*/3); }
  void TearDown() override { end_on_devices(); }
  static Scenario scenario(DType dtype = DType::kBFloat16) {
    Scenario made = test::make_scenario(std::get<1>(GetParam()), std::get<2>(GetParam()));
    made.config.compute_dtype = dtype;
    made.steps = 5;
    return made;
  }
};

INSTANTIATE_TEST_SUITE_P(Schedules, DelayedUpdates, ::testing::ValuesIn(cases_of_all_stages()));

TEST_P(DelayedUpdates, AreThoseOfTheDefinition) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16})
    expect_the_definition(scenario(dtype), delayed(scenario(dtype)));
}

TEST_P(DelayedUpdates, InFiles) {
  const TemporaryDirectory directory;
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16})
    expect_the_definition(scenario(dtype), delayed_in_files(scenario(dtype), directory));
}

TEST_P(DelayedUpdates, AccumulateGradients) {
  for (const Scenario& each : accumulating(scenario())) expect_the_definition(each, delayed(each));
}

TEST_P(DelayedUpdates, OfUnitsThatStayWholeAndLargeOnes) {
  Scenario whole = scenario();
  whole.config.persistence_threshold = 1'000'000;
  expect_the_definition(whole, delayed(whole));
  Scenario large = scenario();
  large.model.ballast = 1 << 17;
  large.steps = 3;
  expect_the_definition(large, delayed(large));
}

// A unit gets no gradient in some steps.
TEST_P(DelayedUpdates, OfWhatHasGradients) {
  Scenario some = scenario();
  some.skip = [](int /*rank*/, int step, size_t unit) { return unit == 1 && step % 2 == 0; };
  expect_the_definition(some, delayed(some));
}

// The update before a step that is skipped is published all the same.
TEST_P(DelayedUpdates, ASkippedStepHasNone) {
  Scenario overflowing = scenario(DType::kFloat16);
  overflowing.config.fp16.enabled = true;
  overflowing.config.fp16.initial_scale_power = 4;
  overflowing.config.fp16.hysteresis = 1;
  overflowing.input_scale = [](int rank, int step) {
    return rank == 0 && step == 2 ? std::numeric_limits<float>::infinity() : 1;
  };
  expect_the_definition(overflowing, delayed(overflowing));
}

TEST_P(DelayedUpdates, OfSgdWithoutMomentum) {
  Scenario plain = scenario();
  plain.config.optimizer->type = OptimizerConfig::Type::kSgd;
  plain.config.optimizer->momentum = 0;
  expect_the_definition(plain, delayed(plain));
}

TEST_P(DelayedUpdates, GiveTheSameBitsOnStreamsOfTheUsers) {
  expect_the_same_bits_on_own_streams(delayed(scenario()));
}

TEST_P(DelayedUpdates, AnEngineMayGo) {
  expect_an_engine_may_go(delayed(scenario()));
}

TEST_P(DelayedUpdates, UnitsAreReturnedWithTheLastUpdate) {
  const Scenario made = scenario();
  const Late expected = train_by_definition(made);
  test::ThreadWorld world(delayed(made));
  const auto errors = world.run([&](test::Rank& rank) {
    at::set_num_threads(1);
    rank.make_engine();
    for (int step = 0; step < made.steps; ++step) rank.train_step(step);
    rank.engine->publish_update();
    for (size_t unit = 0; unit < test::kUnits; ++unit) rank.engine->return_unit(unit);
    rank.engine.reset();
    std::vector<at::Tensor> values;
    for (const auto& unit : rank.model.params())
      for (const at::Tensor& param : unit) values.push_back(param.detach().to(at::kFloat).reshape({-1}).cpu());
    EXPECT_TRUE(at::cat(values).equal(expected.updated.to(at::kBFloat16).to(at::kFloat)));
  });
  EXPECT_THAT(errors, Each(""));
  expect_no_race(made);
}

// What is set counts, as do the moments of the update under way.
TEST_P(DelayedUpdates, WeightsThatAreSetStay) {
  const at::Tensor weight = at::full({test::kWidth * test::kWidth}, 0.01, at::kFloat);
  const Scenario made = delayed(scenario());
  test::ThreadWorld world(made);
  const auto errors = world.run([&](test::Rank& rank) {
    at::set_num_threads(1);
    rank.make_engine();
    for (int step = 0; step < 2; ++step) rank.train_step(step);
    rank.engine->set_weights(1, 0, 0, weight);
    EXPECT_TRUE(weights_of(rank)[1][0].reshape({-1}).equal(weight));
    write_nothing(rank);
    EXPECT_TRUE(weights_of(rank)[1][0].reshape({-1}).equal(weight));
    rank.finish();
    constexpr int64_t kUnitNumel = test::kWidth * (test::kWidth + 3);
    const at::Tensor values = rank.result.values.slice(0, kUnitNumel, kUnitNumel + weight.numel());
    EXPECT_TRUE(values.equal(weight.to(at::kBFloat16).to(at::kFloat)));
  });
  EXPECT_THAT(errors, Each(""));
  expect_no_race(made);
}

// An update that is pending would overwrite what a user writes, by whatever way: each rank says so. Inside of
// gathered() writes count, and before the first step.
TEST_P(DelayedUpdates, RefuseWritesThatWouldBeLost) {
  if (std::get<2>(GetParam()) == 3) GTEST_SKIP() << "no parameters are whole between steps";
  for (const bool by_data : {false, true}) {
    const Scenario made = delayed(scenario());
    test::ThreadWorld world(made);
    const auto errors = world.run([&](test::Rank& rank) {
      at::set_num_threads(1);
      rank.make_engine();
      const at::NoGradGuard no_grad;
      const at::AutoGradMode with_grad(true);
      const auto write = [&](double value) {
        const at::NoGradGuard without;
        const at::Tensor& param = rank.model.params()[2][0];
        by_data ? param.data().fill_(value) : at::Tensor(param.detach()).fill_(value);
      };
      write(0.125);
      rank.train_step(0);
      EXPECT_NEAR(weights_of(rank)[2][0].mean().item<float>(), 0.125, 0.02);  // one update later
      rank.train_step(1);
      rank.engine->gather({2}, /*to_modify=*/true);
      write(0.25);
      rank.engine->release({2}, /*modify_rank=*/0);
      rank.train_step(2);
      EXPECT_NEAR(weights_of(rank)[2][0].mean().item<float>(), 0.25, 0.02);
      double value = 0.5;
      const auto expect_refusal = [&](const std::function<void()>& call) {
        write(value += 0.125);
        try {
          call();
          ADD_FAILURE() << "the write is lost";
        } catch (const StateError& error) {
          EXPECT_THAT(error.what(), HasSubstr("delayed_update"));
        }
        EXPECT_LT(weights_of(rank)[2][0].mean().item<float>(), 0.4);
      };
      expect_refusal([&] { rank.train_step(3); });
      rank.engine->step();  // told once
      expect_refusal([&] { rank.engine->gather({1}, /*to_modify=*/true); });
      expect_refusal([&] { rank.engine->publish_update(); });
      static_cast<void>(rank.engine->slices());
      expect_refusal([&] { rank.engine->publish_update(); });
      rank.engine->set_weights(3, 0, 0, at::zeros({test::kWidth * test::kWidth}));
      expect_refusal([&] { rank.engine->publish_update(); });
      write(value += 0.125);
      rank.engine->set_weights(2, 1, 0, at::zeros({test::kWidth}));
      expect_refusal([&] { rank.engine->publish_update(); });
      rank.engine->publish_update();
      rank.train_step(4);
    });
    EXPECT_THAT(errors, Each(""));
    expect_no_race(made);
  }
}

// A save is never refused; the backward of a forward before it is.
TEST_P(DelayedUpdates, DoNotComeBetweenForwardAndBackward) {
  const TemporaryDirectory directory;
  const Scenario made = delayed(scenario());
  const auto train = [&](test::SavingRank& rank) {
    for (const int step : {0, 1}) rank.train_step(made, step);
    const auto forward = [&] {
      rank.engine->begin_forward(/*training=*/true);
      return test::loss_of(*rank.model, made, rank.rank, 2, 0, rank.engine.get());
    };
    const at::Tensor loss = forward();
    rank.engine->save_checkpoint(directory.path(), "a", 2, {}, {});
    try {
      rank.engine->backward(loss);
      ADD_FAILURE() << "parameters have changed before their backward";
    } catch (const std::exception& error) {
      EXPECT_THAT(error.what(), HasSubstr("backward() would use other parameters than its forward pass"));
    }
    rank.train_step(made, 2);
    const at::Tensor before = forward();
    rank.engine->save_checkpoint(directory.path(), "c", 3, {}, {});
    static_cast<void>(forward());
    EXPECT_ANY_THROW(rank.engine->backward(before));  // though another forward has come since
    rank.train_step(made, 3);
    static_cast<void>(forward());  // its backward never comes
    rank.engine->save_checkpoint(directory.path(), "b", 3, {}, {});
    rank.train_step(made, 3);
  };
  EXPECT_THAT(run_saving(made, train), Each(""));
}

// What comes to the parameters outside of a step waits for an evaluation that is under way.
TEST_P(DelayedUpdates, ComeAfterAnEvaluation) {
  const Scenario made = delayed(scenario());
  test::ThreadWorld world(made);
  const auto errors = world.run([&](test::Rank& rank) {
    at::set_num_threads(1);
    rank.make_engine();
    for (const int step : {0, 1}) rank.train_step(step);
    const test::Batch batch = test::batch_of(made, rank.gather.rank(), 2, /*micro_batch=*/0);
    const auto evaluate = [&] {
      const at::NoGradGuard no_grad;
      rank.engine->begin_forward(/*training=*/false);
      return test::loss_of(rank.model, made, rank.gather.rank(), 2, batch, rank.engine.get());
    };
    const at::Tensor expected = evaluate().cpu(), under_way = evaluate();
    write_nothing(rank);
    EXPECT_TRUE(under_way.cpu().equal(expected));
    EXPECT_FALSE(evaluate().cpu().equal(expected));
  });
  EXPECT_THAT(errors, Each(""));
  expect_no_race(made);
}

// The update that is pending comes before what is loaded, and after gathers of a forward without a backward.
TEST_P(DelayedUpdates, AreOverwrittenByALoad) {
  const TemporaryDirectory directory;
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    const Scenario made = delayed(scenario(dtype));
    const std::string root = directory.path() + "/" + std::string(name_of(dtype));
    const auto train = [&](test::SavingRank& rank) {
      for (const int step : {0, 1}) rank.train_step(made, step);
      rank.engine->save_checkpoint(root, "a", 2, {}, {});
      const at::Tensor saved = rank.values();
      for (const bool passes : {false, true}) {
        rank.train_step(made, 2);
        if (passes) {
          rank.engine->begin_forward(/*training=*/true);
          static_cast<void>(test::loss_of(*rank.model, made, rank.rank, 3, 0, rank.engine.get()));
        }
        EXPECT_NE(rank.engine->load_checkpoint(root), std::nullopt);
        EXPECT_TRUE(rank.values().equal(saved));
        rank.train_step(made, 2);
        EXPECT_TRUE(rank.values().equal(saved));
      }
      rank.engine->begin_forward(/*training=*/true);
      static_cast<void>(test::loss_of(*rank.model, made, rank.rank, 3, 0, rank.engine.get()));
      rank.engine->publish_update();
    };
    EXPECT_THAT(run_saving(made, train), Each(""));
    expect_no_race(made);
  }
}

// A save publishes: the run goes on as one that loads it, on the host and in files, at once and in the background.
TEST_P(DelayedUpdates, GoOnFromACheckpoint) {
  const TemporaryDirectory directory;
  int number = 0;
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    for (const Scenario& saving : {delayed(scenario(dtype)), delayed_in_files(scenario(dtype), directory)}) {
      for (const bool async : {false, true}) {
        SaveOptions options;
        options.async = async;
        const std::string root = directory.path() + "/" + std::to_string(number++);
        const SavedRun run = train_and_save(saving, root, options);
        ASSERT_FALSE(::testing::Test::HasFailure()) << saving.text() << ", async " << async;
        for (const Scenario& loading : {delayed(scenario(dtype)), delayed_in_files(scenario(dtype), directory)}) {
          expect_same_end(loading, run, [&](test::SavingRank& rank) {
            rank.train_step(loading, 0);  // pending when the checkpoint comes
            EXPECT_NE(rank.engine->load_checkpoint(root), std::nullopt);
          });
        }
        expect_no_race(saving);
      }
    }
  }
}

// The next gradients go to the host when nobody reads the last ones there any more.
TEST(GradBucket, NewGradientsWaitForReadersOfTheOldOnes) {
  begin_on_devices(Schedule::kEager, /*seed=*/0);
  {
    constexpr int64_t kNumel = kBlockNumel;
    const auto comms = make_device_world(1);
    const UnitLayout unit = make_unit_layout("unit", {{{"weight"}, {kNumel}, DType::kFloat32, true}}, 1);
    PlacementOptions placement;
    placement.stage = 2;
    placement.on_device = true;
    placement.state_tier = placement.gradient_tier = Tier::kHost;
    const std::vector<UnitPlacement> table = place({&unit, 1}, placement);
    Ledger ledger;
    GradientExit exit(device(0), RingClass{kNumel * 4, /*slots=*/1, /*units=*/1}, ledger);
    SlotRing ring({{kNumel * 4, 1}},
                  [&](int64_t bytes) { return FlatBuffer(bytes, device(0), ledger, Category::kReduceRing); });
    const at::Tensor host = at::zeros({kNumel}, at::TensorOptions().dtype(at::kFloat).pinned_memory(true));
    WriteHold::Reading reading;
    bool has_waited = false;
    ReduceOptions options;
    options.device = device(0);
    options.ledger = &ledger;
    options.exit = &exit;
    options.while_read = [&] {
      Streams::get().wait_for_device(0);
      has_waited = true;
      EXPECT_TRUE(host.eq(1).all().item<bool>());
      reading.reset();
    };
    GradBucket bucket(unit, 0, table[0].groups[0], options, *comms[0], at::Tensor(), std::make_unique<Array>(host));
    for (const double value : {1.0, 2.0}) {
      bucket.begin(ring.acquire(bucket.slot_bytes()));
      bucket.add(0, at::full({kNumel}, value, at::TensorOptions(device(0)).dtype(at::kFloat)));
      bucket.launch({}, /*with_local=*/true);
      bucket.finish();
      ring.release(bucket.hand_over().drain());
      bucket.end_backward();
      EXPECT_TRUE(bucket.reduced().tensor().eq(value).all().item<bool>());
      bucket.end_step();
      EXPECT_EQ(has_waited, value > 1);
      reading = bucket.reduced().read();
    }
    reading.reset();
  }
  end_on_devices();
}

// What the thread cannot read ends every rank, whatever these wait for, and so it does each later call.
TEST_P(DelayedUpdates, DamageOnOneRankEndsEveryRank) {
  const TemporaryDirectory directory;
  const Scenario made = delayed_in_files(scenario(), directory);
  test::ThreadWorld world(made);
  const std::vector<std::string> errors = world.run([&](test::Rank& rank) {
    at::set_num_threads(1);
    rank.make_engine();
    rank.train_step(0);
    static_cast<void>(weights_of(rank));  // the thread has done
    rank.reduce.host().barrier("before");
    if (rank.reduce.rank() == 0)
      for (const UniqueFd& file : testing::swap_files_in(directory.path())) testing::flip_bits(file.get());
    rank.reduce.host().barrier("after");
    try {
      for (int step = 1; step < 4; ++step) rank.train_step(step);
    } catch (const std::exception& error) {
      EXPECT_ANY_THROW(rank.engine->step());
      EXPECT_ANY_THROW(weights_of(rank));
      throw;
    }
  });
  for (const std::string& error : errors)
    EXPECT_THAT(error, ::testing::AllOf(HasSubstr("cannot use what was read from the swap file in "),
                                        HasSubstr(directory.path()), HasSubstr("of unit 'unit ")));
  expect_no_race(made);
}

}  // namespace
}  // namespace zeroshard::accelerator
