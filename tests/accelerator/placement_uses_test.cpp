// Users read, write and stop beside steps, and lose files, in every placement.
#include "accelerator/placements.h"

#include <unistd.h>

#include <algorithm>
#include <memory>

#include "file/open_swap_files.h"
#include "zeroshard/error.h"

namespace zeroshard::accelerator {
namespace {

using test::kUnits;
using test::kWidth;
using test::Result;
using test::Scenario;
using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::Each;

// An optimizer outside of the engine has its states in memory, in fp32, as a whole.
class PlacementsOfExternalStates : public Placements {};
INSTANTIATE_TEST_SUITE_P(Memory, PlacementsOfExternalStates, placement_cases([](const PlaceCase& of) {
                           return of.place.states != OffloadDevice::kNvme && !of.place.is_shared() &&
                                  of.place.moments == DType::kFloat32;
                         }),
                         name_of_case);

// Each step reads files in these places. If the device updates fp32 parameters, only frozen parameters go to files. The
// test's model has one frozen parameter, which the engine reads once and then finds in its buffer.
class PlacementsInFiles : public Placements {};
INSTANTIATE_TEST_SUITE_P(Files, PlacementsInFiles, placement_cases([](const PlaceCase& of) {
                           const Place& place = of.place;
                           return place.states == OffloadDevice::kNvme ||
                                  (place.parameters == OffloadDevice::kNvme && place.moves_parameters(of.dtype));
                         }),
                         name_of_case);

// Two whole parameters by their numbers, and one through its tensor while two units are gathered.
void set_weights(test::Rank& rank, int pass) {
  const at::Tensor weight = at::full({kWidth * kWidth}, 0.01 * (pass + 1), at::kFloat);
  for (const size_t unit : {kUnits - 2, size_t{1}}) rank.engine->set_weights(unit, 0, 0, weight);
  rank.engine->set_weights(1, 4, 0, at::full({20'000}, 0.01 * (pass + 1), at::kFloat));
}
void write_gathered_units(test::Rank& rank, int pass) {
  const at::NoGradGuard no_grad;
  rank.engine->gather({1, 2}, /*to_modify=*/true);
  rank.model.params()[2][0].data().fill_(0.01 * (pass + 1));
  rank.engine->release({1, 2}, /*modify_rank=*/0);
}

// What users write counts from the next step on, also before the first gradient of a unit.
TEST_P(Placements, CountWhatUsersWrite) {
  Scenario later = scenario();
  later.steps = 5;
  later.skip = [](int /*rank*/, int step, size_t unit) { return unit == 1 && step < 2; };
  const auto write = [](test::Rank& rank, int step) {
    const at::NoGradGuard no_grad;
    if (step == 1 && rank.scenario.config.stage < 3)
      for (const auto& [unit, param] : {std::pair<size_t, size_t>{2, 0}, {1, 0}, {2, 4}})
        rank.model.params()[unit][param].data().mul_(1.5);
    if (step == 3) write_gathered_units(rank, step);
    // set_weights() is not called in step 2, because it would lead the engine to the writes of step 1.
    if (step == 0 || step == 4) set_weights(rank, step);
  };
  expect_the_same_values(later, [&](test::Rank& rank) { train_without_waits(rank, write); });
}

// The weights of a rank change while a pass that needs the old ones is under way. If the engine did not wait for the
// copies of the pass, weights on the host would change at once.
TEST_P(Placements, HaveTheWeightsOfItsBeginInAPass) {
  const auto steps = [](test::Rank& rank, int pass) { rank.train_step(pass + 1); };
  const auto writes_and_steps = [](test::Rank& rank, int pass) {
    write_gathered_units(rank, pass);
    rank.train_step(pass + 1);
    set_weights(rank, pass);
  };
  for (const std::function<void(test::Rank&, int)>& change :
       std::initializer_list<std::function<void(test::Rank&, int)>>{set_weights, write_gathered_units, steps,
                                                                    writes_and_steps}) {
    std::vector<std::vector<at::Tensor>> losses_of_world;
    expect_the_same_values(scenario(), [&](test::Rank& rank) {
      rank.make_engine();
      const test::Batch batch = test::batch_of(rank.scenario, rank.gather.rank(), 0, /*micro_batch=*/0);
      rank.train_step(0);
      std::vector<at::Tensor> losses;
      for (int pass = 0; pass < 3; ++pass) {
        {
          const at::NoGradGuard no_grad;
          rank.engine->begin_forward(/*training=*/false);
          losses.push_back(test::loss_of(rank.model, rank.scenario, rank.gather.rank(), 0, batch, rank.engine.get()));
        }
        change(rank, pass);
      }
      for (at::Tensor& loss : losses) loss = loss.cpu();
      if (rank.gather.rank() == 0) losses_of_world.push_back(losses);
    });
    ASSERT_EQ(losses_of_world.size(), 2U);
    for (size_t pass = 0; pass < 3; ++pass)
      EXPECT_TRUE(losses_of_world[0][pass].equal(losses_of_world[1][pass])) << pass;
    EXPECT_FALSE(losses_of_world[0][0].equal(losses_of_world[0][1]));
  }
}

TEST_P(Placements, GiveTheSameBitsOnStreamsOfTheUsers) {
  expect_the_same_bits_on_own_streams(placed(scenario()));
}

TEST_P(Placements, LetAnEngineGoAtAnyTime) {
  expect_an_engine_may_go(placed(scenario()));
}

// The model is the user's again, and has the values.
TEST_P(Placements, ReturnTheirUnits) {
  const Scenario made = placed(scenario());
  const Result expected = test::train(made);
  test::ThreadWorld world(made);
  const auto errors = world.run([&](test::Rank& rank) {
    rank.train();
    for (size_t unit = 0; unit < kUnits; ++unit) rank.engine->return_unit(unit);
    rank.engine.reset();
    std::vector<at::Tensor> values;
    for (const auto& unit : rank.model.params())
      for (const at::Tensor& param : unit) values.push_back(param.detach().to(at::kFloat).reshape({-1}).cpu());
    EXPECT_TRUE(at::cat(values).equal(expected.values));
  });
  EXPECT_THAT(errors, Each(""));
}

// Between backward and step, after the step, and those that the user sets.
TEST_P(Placements, LetUsersReadAndSetGradients) {
  std::vector<std::vector<at::Tensor>> seen_by_world;
  expect_the_same_values(scenario(), [&](test::Rank& rank) {
    std::vector<at::Tensor> seen;
    rank.make_engine();
    const auto see = [&](const std::optional<at::Tensor>& grad) {
      ASSERT_TRUE(grad.has_value());
      EXPECT_EQ(grad->device().type(), rank.scenario.device_of(rank.gather.rank()).type());
      seen.push_back(grad->cpu());
    };
    for (int step = 0; step < 2; ++step) {
      rank.engine->begin_forward(/*training=*/true);
      rank.engine->backward(test::loss_of(rank.model, rank.scenario, rank.gather.rank(), step, 0, rank.engine.get()));
      see(rank.engine->full_grad(1, 0));
      see(rank.engine->local_grad(2, 0));
      rank.engine->set_grad(3, 0, 0, rank.engine->full_grad(3, 0)->mul(0.25));
      see(rank.engine->full_grad(3, 0));
      rank.result.steps.push_back(rank.engine->step());
      see(rank.engine->full_grad(3, 0));
      seen.push_back(at::full({}, rank.result.steps.back().grad_norm, at::kDouble));
    }
    if (rank.gather.rank() == 0) seen_by_world.push_back(std::move(seen));
  });
  ASSERT_EQ(seen_by_world.size(), 2U);
  for (size_t i = 0; i < seen_by_world[0].size(); ++i)
    EXPECT_TRUE(seen_by_world[0][i].equal(seen_by_world[1].at(i))) << i;
}

// The tensors of an optimizer outside of the engine lie where its states would lie.
TEST_P(PlacementsOfExternalStates, ServeAnOptimizerOutside) {
  expect_the_same_values(scenario(), [](test::Rank& rank) {
    EngineOptions options;
    options.config = rank.scenario.config;
    options.device = rank.scenario.device_of(rank.gather.rank());
    options.external_optimizer = "SGD";
    const bool on_host = options.device.is_cpu() || place().has_offloaded_states();
    rank.engine = std::make_unique<Engine>(rank.model.definitions(), std::move(options), rank.gather, rank.reduce);
    for (int step = 0; step < 3; ++step) {
      rank.engine->begin_forward(/*training=*/true);
      rank.engine->backward(test::loss_of(rank.model, rank.scenario, rank.gather.rank(), step, 0, rank.engine.get()));
      const StepResult result = rank.engine->prepare_step();
      for (const OptimizerSlice& slice : rank.engine->slices()) {
        EXPECT_EQ(slice.master.is_cpu(), on_host);
        EXPECT_EQ(slice.grad.is_cpu(), on_host);
        at::Tensor(slice.master).sub_(slice.grad.mul(0.125));
      }
      rank.engine->finish_step(result);
    }
  });
}

// A backward that fails on one rank is discarded, with what it has already sent from the device.
TEST_P(Placements, KeepNothingOfAFailedBackward) {
  const Result expected = test::train(scenario());
  const Scenario failing = placed(scenario());
  test::ThreadWorld world(failing);
  const auto errors = world.run([](test::Rank& rank) {
    at::set_num_threads(1);
    rank.make_engine();
    for (int step = 0; step < rank.scenario.steps; ++step) {
      rank.engine->begin_forward(/*training=*/true);
      const at::Tensor loss =
          test::loss_of(rank.model, rank.scenario, rank.gather.rank(), step + 7, 0, rank.engine.get());
      rank.engine->begin_backward();
      loss.backward();
      if (rank.gather.rank() == 0)
        rank.engine->fail_backward("a test");
      else
        EXPECT_THROW(rank.engine->end_backward(), StateError);
      rank.train_step(step);
    }
    rank.finish();
  });
  ASSERT_THAT(errors, Each(""));
  EXPECT_TRUE(expected.values.equal(world.rank(0).result.values));
}

// Two engines with buffers and streams of their own take turns.
TEST_P(Placements, LetEnginesTrainBesideEachOther) {
  const Scenario one = placed(scenario());
  const Result expected = test::train(scenario());
  test::ThreadWorld first(one), second(one);
  const auto errors = first.run([&second](test::Rank& rank) {
    at::set_num_threads(1);
    test::Rank& other = second.rank(rank.gather.rank());
    rank.make_engine();
    other.make_engine();
    for (int step = 0; step < rank.scenario.steps; ++step)
      for (test::Rank* const each : {&rank, &other}) each->train_step(step);
    for (test::Rank* const each : {&rank, &other}) each->finish();
  });
  ASSERT_THAT(errors, Each(""));
  for (test::ThreadWorld* world : {&first, &second}) EXPECT_TRUE(expected.values.equal(world->rank(0).result.values));
}

// Parameters of a unit are in several param groups, one of which is not updated.
TEST_P(Placements, HaveParamGroupsThatCutUnits) {
  expect_the_same_values(scenario(), [](test::Rank& rank) {
    EngineOptions options;
    options.config = rank.scenario.config;
    options.device = rank.scenario.device_of(rank.gather.rank());
    options.param_groups.resize(2);
    options.param_groups[0].lr = 0.02;
    options.param_groups[1].lr = 0.003;
    std::vector<UnitDefinition> units = rank.model.definitions();
    for (UnitDefinition& unit : units)
      for (size_t i = 0; i < unit.params.size(); ++i) unit.params[i].param_group = i == 2 ? -1 : int(i % 2);
    rank.engine = std::make_unique<Engine>(std::move(units), std::move(options), rank.gather, rank.reduce);
    for (int step = 0; step < 4; ++step) rank.train_step(step);
  });
}

// Ranks that read their shards themselves never have the model whole on the device.
TEST_P(Placements, TakeShardsThatRanksReadThemselves) {
  const Result expected = test::train(scenario());
  test::ThreadWorld world(placed(scenario()));
  const auto errors = world.run([](test::Rank& rank) {
    at::set_num_threads(1);
    const test::Model values(rank.scenario.model, /*seed=*/0);
    std::vector<UnitDefinition> units = rank.model.definitions();
    for (size_t u = 0; u < kUnits; ++u) {
      units[u].values = [&values, u](const std::string& name, int64_t begin, int64_t end, float* out) {
        const size_t index = std::stoul(name.substr(name.rfind('.') + 1));
        const at::Tensor flat = values.params()[u][index].detach().reshape({-1});
        std::copy(flat.const_data_ptr<float>() + begin, flat.const_data_ptr<float>() + end, out);
      };
    }
    EngineOptions options;
    options.config = rank.scenario.config;
    options.device = rank.scenario.device_of(rank.gather.rank());
    rank.engine = std::make_unique<Engine>(std::move(units), std::move(options), rank.gather, rank.reduce);
    for (int step = 0; step < rank.scenario.steps; ++step) rank.train_step(step);
    rank.finish();
  });
  ASSERT_THAT(errors, Each(""));
  EXPECT_TRUE(expected.values.equal(world.rank(0).result.values));
}

// One rank loses its files, or they are damaged. Frozen parameters, which nobody writes after the start, are among
// them.
TEST_P(PlacementsInFiles, EndEveryRankWithTheUnitAfterDamage) {
  must_not_wait_ = false;
  for (const bool flips : {true, false}) {
    Scenario made = scenario();
    made.model.frozen = true;
    test::ThreadWorld world(placed(made, place(), /*buffer_count=*/1));
    const std::vector<std::string> errors = world.run([&](test::Rank& rank) {
      at::set_num_threads(1);
      rank.make_engine();
      rank.train_step(0);
      rank.engine->gather({2});  // so that the only buffer has another shard than the first to be needed
      rank.engine->release({2});
      rank.reduce.host().barrier("before");
      if (rank.reduce.rank() == 0) {
        for (const auto* const directory : {&directory_, &other_}) {
          for (const UniqueFd& file : testing::swap_files_in(directory->path())) {
            if (flips) {
              testing::flip_bits(file.get());
            } else {
              ASSERT_EQ(::ftruncate(file.get(), 0), 0);
            }
          }
        }
      }
      rank.reduce.host().barrier("after");
      for (int step = 1; step < 3; ++step) rank.train_step(step);
      rank.reduce.host().barrier("end");
    });
    for (const std::string& error : errors)
      EXPECT_THAT(error, AllOf(ContainsRegex("cannot (read|use what was read from) the swap file in "),
                               ContainsRegex("of (group . of )?unit 'unit .'")))
          << "flips " << flips;
  }
}

}  // namespace
}  // namespace zeroshard::accelerator
