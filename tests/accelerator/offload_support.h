#pragma once
#include <gmock/gmock.h>

#include <functional>
#include <limits>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "accelerator/support.h"
#include "engine/support.h"
#include "support/release.h"

// What holds for every run on devices that offloads to the host.
namespace zeroshard::accelerator {

// Schedule, ranks and stage: the tests of every stage.
inline std::vector<std::tuple<Schedule, int, int>> cases_of_all_stages() {
  if (!testing::release()) {
    return {{Schedule::kLazy, 1, 2},
            {Schedule::kLate, 1, 3},
            {Schedule::kLazy, 2, 1},
            {Schedule::kLate, 2, 2},
            {Schedule::kLazy, 2, 3}};
  }
  std::vector<std::tuple<Schedule, int, int>> all;
  for (const Schedule schedule : {Schedule::kEager, Schedule::kLate, Schedule::kLazy})
    for (const int ranks : {1, 2, 3})
      for (const int stage : {1, 2, 3}) all.emplace_back(schedule, ranks, stage);
  return all;
}

// Schedule and ranks: the tests of one stage. `some`: where they are not those of a release.
inline std::vector<std::tuple<Schedule, int>> cases_of_one_stage(std::vector<std::tuple<Schedule, int>> some) {
  if (!testing::release()) return some;
  std::vector<std::tuple<Schedule, int>> all;
  for (const Schedule schedule : {Schedule::kEager, Schedule::kLate, Schedule::kLazy})
    for (const int ranks : {1, 2, 3}) all.emplace_back(schedule, ranks);
  return all;
}

inline void expect_no_race(const test::Scenario& scenario) {
  EXPECT_THAT(Streams::get().races().found(), ::testing::IsEmpty()) << scenario.text();
  EXPECT_THAT(operators_that_waited(), ::testing::IsEmpty()) << scenario.text();
  EXPECT_EQ(pinned_frees_in_use(), 0) << scenario.text();
}

// In each category and on each tier the engine has held what was planned.
inline void expect_as_planned(const test::Scenario& scenario, const test::Result& result) {
  for (const MemoryLine& line : result.memory) {
    const bool is_more = scenario.no_sync && line.category == "gradients" && line.tier == "device";
    if (line.category == "temporaries" || is_more) continue;
    EXPECT_EQ(line.measured_peak, line.planned) << line.category << " on " << line.tier << ", " << scenario.text();
  }
}

inline int64_t planned(const test::Result& result, const std::string& category, const std::string& tier) {
  for (const MemoryLine& line : result.memory)
    if (line.category == category && line.tier == tier) return line.planned;
  return 0;
}

// `offloads` trains as `scenario` does on the CPU and on the device, down to the norms, in the planned memory. Returns
// its result.
inline test::Result expect_bits_of(const test::Scenario& scenario, const test::Scenario& offloads) {
  const test::Result cpu = test::train(scenario), without = test::train(on_devices(scenario));
  test::Result result = test::train(offloads);
  EXPECT_EQ(result.steps.size(), without.steps.size()) << scenario.text();
  if (::testing::Test::HasFailure()) return result;
  EXPECT_TRUE(result.values.equal(cpu.values)) << scenario.text();
  for (size_t step = 0; step < result.steps.size(); ++step) {
    EXPECT_EQ(result.steps[step].applied, without.steps[step].applied) << scenario.text();
    if (without.steps[step].applied) {
      EXPECT_EQ(result.steps[step].grad_norm, without.steps[step].grad_norm) << scenario.text();
    }
  }
  expect_as_planned(scenario, result);
  expect_no_race(scenario);
  return result;
}

// `pinned` trains to the same bits where memory cannot be pinned, and as `pageable`, which does not ask for it.
inline void expect_bits_without_pinning(const test::Scenario& pinned, const test::Scenario& pageable) {
  const test::Result expected = test::train(pinned);
  refuse_to_pin(true);
  const test::Result refused = test::train(pinned);
  refuse_to_pin(false);
  const int64_t bytes = pinned_bytes();
  const test::Result not_asked = test::train(pageable);
  ASSERT_FALSE(::testing::Test::HasFailure());
  EXPECT_EQ(pinned_bytes(), bytes);
  EXPECT_TRUE(expected.values.equal(refused.values));
  EXPECT_TRUE(expected.values.equal(not_asked.values));
}

// What ranks have after three steps of an optimizer outside the engine. Its tensors are `on_host`, or not.
inline at::Tensor values_of_an_optimizer_outside(const test::Scenario& scenario, bool on_host) {
  test::ThreadWorld world(scenario);
  const auto errors = world.run([on_host](test::Rank& rank) {
    at::set_num_threads(1);
    EngineOptions options;
    options.config = rank.scenario.config;
    options.device = rank.scenario.device_of(rank.gather.rank());
    options.external_optimizer = "SGD";
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
    rank.finish();
  });
  EXPECT_THAT(errors, ::testing::Each(""));
  return world.rank(0).result.values;
}

// What rank 0 reads of gradients in two steps, and the values at the end: between backward and step, after it, and of
// those that the user sets.
inline std::vector<at::Tensor> gradients_read_and_set(const test::Scenario& scenario) {
  std::vector<at::Tensor> values;
  test::ThreadWorld world(scenario);
  const auto errors = world.run([&values](test::Rank& rank) {
    at::set_num_threads(1);
    rank.make_engine();
    const auto see = [&](const std::optional<at::Tensor>& grad) {
      ASSERT_TRUE(grad.has_value());
      EXPECT_FALSE(grad->is_cpu());
      if (rank.gather.rank() == 0) values.push_back(grad->cpu());
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
      if (rank.gather.rank() == 0) values.push_back(at::full({}, rank.result.steps.back().grad_norm, at::kDouble));
    }
    rank.finish();
  });
  EXPECT_THAT(errors, ::testing::Each(""));
  values.push_back(world.rank(0).result.values);
  return values;
}
inline void expect_the_same_gradients(const test::Scenario& without, const test::Scenario& offloads) {
  const std::vector<at::Tensor> seen = gradients_read_and_set(without), same = gradients_read_and_set(offloads);
  ASSERT_EQ(seen.size(), same.size());
  for (size_t i = 0; i < seen.size(); ++i) EXPECT_TRUE(seen[i].equal(same[i])) << i << ", " << without.text();
}

// Steps of three micro-batches, with and without no_sync.
inline std::vector<test::Scenario> accumulating(test::Scenario scenario) {
  scenario.steps = 2;
  scenario.config.grad_accumulation_steps = 3;
  test::Scenario unsynced = scenario;
  unsynced.no_sync = true;
  return {scenario, unsynced};
}

// A step in fp16 that is infinite on one rank is skipped, with and without offload, which `offloads` adds.
template <typename Offloads>
void expect_skipped_steps(test::Scenario overflowing, const Offloads& offloads) {
  overflowing.config.fp16.enabled = true;
  overflowing.config.fp16.initial_scale_power = 4;
  overflowing.config.fp16.hysteresis = 1;
  overflowing.input_scale = [](int rank, int step) {
    return rank == 0 && step == 1 ? std::numeric_limits<float>::infinity() : 1;
  };
  // The simulated device lacks an operator that names the gradient: this is compared with the CPU alone.
  const test::Result expected = test::train(overflowing), result = test::train(offloads(overflowing));
  ASSERT_FALSE(::testing::Test::HasFailure());
  EXPECT_FALSE(result.steps[1].applied);
  EXPECT_TRUE(result.values.equal(expected.values));
  expect_no_race(overflowing);
}

// The memory of an engine, pinned or not, is given back, whatever is under way.
inline void expect_an_engine_may_go(const test::Scenario& scenario) {
  // After a step, within a forward that gathers ahead, after a backward, after a backward that nobody has ended.
  for (const int end : {0, 1, 2, 3}) {
    const int64_t pinned = pinned_bytes(), allocated = allocated_bytes(0);
    {
      test::ThreadWorld world(scenario);
      const auto errors = world.run([end](test::Rank& rank) {
        at::set_num_threads(1);
        rank.make_engine();
        for (int step = 0; step < 2; ++step) rank.train_step(step);
        if (end > 0) rank.engine->begin_forward(/*training=*/true);
        if (end == 1) rank.engine->unit(0, [&] { return at::zeros({1}); });
        if (end >= 2) {
          const at::Tensor loss = test::loss_of(rank.model, rank.scenario, rank.gather.rank(), 2, 0, rank.engine.get());
          end == 2 ? rank.engine->backward(loss) : loss.backward();
        }
        rank.engine.reset();
      });
      ASSERT_THAT(errors, ::testing::Each(""));
    }
    for (int i = 0; i < scenario.world_size; ++i) Streams::get().wait_for_device(i);
    EXPECT_EQ(pinned_bytes(), pinned);
    EXPECT_EQ(allocated_bytes(0), allocated);
  }
  expect_no_race(scenario);
}

// The weights of a rank change while a pass that needs the old ones is under way: on the host at once, if that did not
// wait for the copies from there.
inline void expect_old_weights_in_passes(const test::Scenario& scenario, const test::Scenario& offloads,
                                         const std::function<void(test::Rank&, int)>& change) {
  std::vector<std::vector<at::Tensor>> seen;
  for (const test::Scenario* const each : {&scenario, &offloads}) {
    std::vector<at::Tensor>& of_rank_0 = seen.emplace_back();
    test::ThreadWorld world(*each);
    const auto errors = world.run([&](test::Rank& rank) {
      at::set_num_threads(1);
      rank.make_engine();
      std::vector<at::Tensor> losses;
      const test::Batch batch = test::batch_of(rank.scenario, rank.gather.rank(), 0, /*micro_batch=*/0);
      rank.train_step(0);
      const auto evaluate = [&] {
        const at::NoGradGuard no_grad;
        rank.engine->begin_forward(/*training=*/false);
        return test::loss_of(rank.model, rank.scenario, rank.gather.rank(), 0, batch, rank.engine.get());
      };
      for (int pass = 0; pass < 3; ++pass) {
        losses.push_back(evaluate());
        change(rank, pass);
      }
      for (const at::Tensor& loss : losses)
        if (rank.gather.rank() == 0) of_rank_0.push_back(loss.cpu());
      rank.finish();
    });
    ASSERT_THAT(errors, ::testing::Each(""));
    of_rank_0.push_back(world.rank(0).result.values);
  }
  ASSERT_EQ(seen[0].size(), seen[1].size());
  for (size_t i = 0; i < seen[0].size(); ++i) EXPECT_TRUE(seen[0][i].equal(seen[1][i])) << i << ", " << scenario.text();
  EXPECT_FALSE(seen[1][0].equal(seen[1][1])) << scenario.text();
  expect_no_race(scenario);
}

// What a rank changes in expect_old_weights_in_passes(), and after a step: whole parameters of two units by their
// numbers, and one through its tensor while two units are gathered.
inline void set_weights(test::Rank& rank, int pass) {
  const at::Tensor weight = at::full({test::kWidth * test::kWidth}, 0.01 * (pass + 1), at::kFloat);
  for (const size_t unit : {test::kUnits - 2, size_t{1}}) rank.engine->set_weights(unit, 0, 0, weight);
}
inline void write_gathered_units(test::Rank& rank, int pass) {
  const at::NoGradGuard no_grad;
  rank.engine->gather({1, 2}, /*to_modify=*/true);
  rank.model.params()[2][0].data().fill_(0.01 * (pass + 1));
  rank.engine->release({1, 2}, /*modify_rank=*/0);
}

// The same for each change, where steps change the weights, too. `also`: written behind a step.
inline void expect_old_weights_whatever_changes(const test::Scenario& scenario, const test::Scenario& offloads,
                                                const std::function<void(test::Rank&, int)>& also = {}) {
  const auto steps = [](test::Rank& rank, int pass) { rank.train_step(pass + 1); };
  const auto writes_and_steps = [&also](test::Rank& rank, int pass) {
    write_gathered_units(rank, pass);
    rank.train_step(pass + 1);
    set_weights(rank, pass);
    if (also) also(rank, pass);
  };
  expect_old_weights_in_passes(scenario, offloads, set_weights);
  expect_old_weights_in_passes(scenario, offloads, write_gathered_units);
  expect_old_weights_in_passes(scenario, offloads, steps);
  expect_old_weights_in_passes(scenario, offloads, writes_and_steps);
}

// Streams of the user's for forward, backward and step change no bit.
inline void expect_the_same_bits_on_own_streams(const test::Scenario& scenario) {
  const test::Result expected = test::train(scenario);
  test::ThreadWorld world(scenario);
  const auto errors = world.run([](test::Rank& rank) {
    at::set_num_threads(1);
    rank.make_engine();
    for (int step = 0; step < rank.scenario.steps; ++step) step_on_own_streams(rank, step);
    rank.finish();
  });
  ASSERT_THAT(errors, ::testing::Each(""));
  EXPECT_TRUE(expected.values.equal(world.rank(0).result.values));
  expect_no_race(scenario);
}

// Units that are returned have the values; the model is the user's again.
inline void expect_returned_units(const test::Scenario& scenario) {
  const test::Result expected = test::train(scenario);
  test::ThreadWorld world(scenario);
  const auto errors = world.run([&](test::Rank& rank) {
    rank.train();
    for (size_t unit = 0; unit < test::kUnits; ++unit) rank.engine->return_unit(unit);
    rank.engine.reset();
    std::vector<at::Tensor> values;
    for (const auto& unit : rank.model.params())
      for (const at::Tensor& param : unit) values.push_back(param.detach().to(at::kFloat).reshape({-1}).cpu());
    EXPECT_TRUE(at::cat(values).equal(expected.values));
  });
  EXPECT_THAT(errors, ::testing::Each(""));
  expect_no_race(scenario);
}

// From the first forward to the agreement on the step the host waits for nothing; from there to the next forward,
// neither: each update writes where nobody reads any more.
inline void expect_a_wait_for_the_agreement_alone(test::Scenario accumulating) {
  accumulating.config.grad_accumulation_steps = 2;
  test::ThreadWorld world(accumulating);
  const auto errors = world.run([&](test::Rank& rank) {
    at::set_num_threads(1);
    rank.make_engine();
    for (int warm = 0; warm < 2; ++warm) rank.train_step(warm);
    const test::Batch batch = test::batch_of(rank.scenario, rank.gather.rank(), 2, 0);
    const int64_t before = Streams::host_waits_of_this_thread();
    for (int micro_batch = 0; micro_batch < 2; ++micro_batch) {
      rank.engine->begin_forward(/*training=*/true);
      rank.engine->backward(test::loss_of(rank.model, rank.scenario, rank.gather.rank(), 2, batch, rank.engine.get()));
    }
    EXPECT_EQ(Streams::host_waits_of_this_thread() - before, 0);
    const StepResult result = rank.engine->prepare_step();
    EXPECT_EQ(Streams::host_waits_of_this_thread() - before, 1);
    EXPECT_TRUE(result.applied);
  });
  EXPECT_THAT(errors, ::testing::Each(""));
}

struct SavedRun {
  at::Tensor saved, end;  // values at the checkpoint, and two steps later
};
inline SavedRun train_and_save(const test::Scenario& saving, const std::string& root, const SaveOptions& options = {}) {
  SavedRun run;
  const auto errors = run_saving(saving, [&](test::SavingRank& rank) {
    for (const int step : {0, 1}) rank.train_step(saving, step);
    rank.engine->save_checkpoint(root, "a", 2, {}, options);
    const at::Tensor then = rank.values();
    for (const int step : {2, 3}) rank.train_step(saving, step);
    const at::Tensor now = rank.values();
    if (rank.rank == 0) run = {then, now};
  });
  EXPECT_THAT(errors, ::testing::Each(""));
  return run;
}

// `loading` goes on from the checkpoint of `run` to the same end. `load` is called on each rank to load it.
inline void expect_same_end(const test::Scenario& loading, const SavedRun& run,
                            const std::function<void(test::SavingRank&)>& load) {
  EXPECT_THAT(run_saving(
                  loading,
                  [&](test::SavingRank& rank) {
                    load(rank);
                    EXPECT_TRUE(rank.values().equal(run.saved));
                    for (const int step : {2, 3}) rank.train_step(loading, step);
                    EXPECT_TRUE(rank.values().equal(run.end));
                  },
                  /*first_seed=*/7),
              ::testing::Each(""));
}

// While a pass of evaluation is under way, whose gathers the load must not change.
inline void load_under_a_pass(test::SavingRank& rank, const test::Scenario& loading, const std::string& root) {
  rank.train_step(loading, 0);
  const auto loss = [&] {
    const at::NoGradGuard no_grad;
    rank.engine->begin_forward(/*training=*/false);
    return test::loss_of(*rank.model, loading, rank.rank, 0, 0, rank.engine.get());
  };
  const at::Tensor expected = loss().cpu(), under_way = loss();
  EXPECT_NE(rank.engine->load_checkpoint(root), std::nullopt);
  EXPECT_TRUE(under_way.cpu().equal(expected));
}

}  // namespace zeroshard::accelerator
