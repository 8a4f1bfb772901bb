#pragma once
#include <gmock/gmock.h>

#include <functional>
#include <ostream>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "accelerator/support.h"
#include "base/format.h"
#include "engine/support.h"
#include "file/support.h"
#include "support/release.h"

// The places where an engine on a device can keep what it holds. Each promise about offloading is a test of every
// place.
namespace zeroshard::accelerator {

struct Place {
  const char* name;  // for the names of tests
  OffloadDevice parameters = OffloadDevice::kNone, states = OffloadDevice::kNone;
  double ratio = 1;  // share of the states that leaves the device
  OffloadConfig::Gradients gradients = OffloadConfig::Gradients::kAuto;
  DType moments = DType::kFloat32;
  int64_t max_in_memory = 0;  // elements of parameters that stay on the host, if parameters go to files

  bool has_offloaded_parameters() const { return parameters != OffloadDevice::kNone; }
  bool has_offloaded_states() const { return states != OffloadDevice::kNone; }
  bool has_files() const { return parameters == OffloadDevice::kNvme || states == OffloadDevice::kNvme; }
  bool is_shared() const { return ratio < 1; }
  // Returns whether parameters of `dtype` leave the device. fp32 parameters that the device updates stay there, because
  // they are their own master weights.
  bool moves_parameters(DType dtype) const {
    return has_offloaded_parameters() && (dtype != DType::kFloat32 || (has_offloaded_states() && !is_shared()));
  }
};

inline std::string tier_of(OffloadDevice device) {
  return device == OffloadDevice::kNone ? "device" : device == OffloadDevice::kCpu ? "host" : "file";
}

inline const std::vector<Place>& all_places() {
  using Gradients = OffloadConfig::Gradients;
  constexpr OffloadDevice kHost = OffloadDevice::kCpu, kFile = OffloadDevice::kNvme;
  static const std::vector<Place> places = {
      {.name = "StatesOnHost", .states = kHost},
      {.name = "StatesInFiles", .states = kFile},
      {.name = "StatesSharedWithHost", .states = kHost, .ratio = 0.4},
      {.name = "StatesSharedWithFiles", .states = kFile, .ratio = 0.7},
      {.name = "GradientsStayStatesOnHost", .states = kHost, .gradients = Gradients::kDevice},
      {.name = "GradientsStayStatesInFiles", .states = kFile, .gradients = Gradients::kDevice},
      {.name = "GradientsInFiles", .states = kFile, .gradients = Gradients::kNvme},
      {.name = "AllOnHost", .parameters = kHost, .states = kHost},
      {.name = "AllInFiles", .parameters = kFile, .states = kFile},
      {.name = "AllAndGradientsInFiles", .parameters = kFile, .states = kFile, .gradients = Gradients::kNvme},
      {.name = "AllInFilesAndSomeOnHost", .parameters = kFile, .states = kFile, .max_in_memory = 30'000},
      {.name = "ParametersOnHost", .parameters = kHost},
      {.name = "ParametersInFiles", .parameters = kFile},
      {.name = "ParametersInFilesStatesOnHost", .parameters = kFile, .states = kHost},
      {.name = "ParametersOnHostStatesInFiles", .parameters = kHost, .states = kFile},
      {.name = "ParametersOnHostGradientsStay", .parameters = kHost, .states = kHost, .gradients = Gradients::kDevice},
      {.name = "ParametersOnHostStatesShared", .parameters = kHost, .states = kHost, .ratio = 0.3},
      {.name = "ParametersOnHostStatesSharedWithFiles", .parameters = kHost, .states = kFile, .ratio = 0.75},
      {.name = "ParametersInFilesStatesSharedWithHost", .parameters = kFile, .states = kHost, .ratio = 0.3},
      {.name = "ParametersInFilesStatesShared",
       .parameters = kFile,
       .states = kFile,
       .ratio = 0.75,
       .max_in_memory = 30'000},
      {.name = "MomentsIn16BitsOnHost", .states = kHost, .moments = DType::kBFloat16},
      {.name = "MomentsIn16BitsInFiles", .states = kFile, .moments = DType::kBFloat16},
      {.name = "MomentsIn8BitsOnDevice", .moments = kCodes},
      {.name = "MomentsIn8BitsOnHost", .states = kHost, .moments = kCodes},
      {.name = "MomentsIn8BitsInFiles", .states = kFile, .gradients = Gradients::kDevice, .moments = kCodes},
  };
  return places;
}

struct PlaceCase {
  Place place;
  Schedule schedule = Schedule::kEager;
  int ranks = 1, stage = 3;
  DType dtype = DType::kFloat32;  // of the parameters
};

// Schedule, ranks and stage: all for a release, else some in which each of them occurs.
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

// Returns the cases that `is_wanted` chooses. For a release, each place has all schedules, ranks, stages and dtypes.
// Otherwise it has two or three cases, and each place begins with another dtype than the place before. Shared states
// of whole parameters have both dtypes.
inline auto placement_cases(const std::function<bool(const PlaceCase&)>& is_wanted) {
  std::vector<std::tuple<Schedule, int, int>> some = cases_of_all_stages();
  if (!testing::release()) some = {{Schedule::kLazy, 2, 1}, {Schedule::kLazy, 1, 3}, {Schedule::kLate, 2, 3}};
  std::vector<PlaceCase> cases;
  int first = 0;
  for (const Place& place : all_places()) {
    int number = first++;
    for (const auto& [schedule, ranks, stage] : some) {
      if (stage < 3 && place.has_offloaded_parameters()) continue;
      for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
        const PlaceCase each{place, schedule, ranks, stage, dtype};
        const bool is_turn =
            testing::release() || (stage < 3 && place.is_shared()) || (number % 2 == 0) == (dtype == DType::kBFloat16);
        if (is_turn && is_wanted(each)) cases.push_back(each);
      }
      ++number;
    }
  }
  return ::testing::ValuesIn(cases);
}

inline std::string name_of(const PlaceCase& of) {
  const std::string schedule = of.schedule == Schedule::kEager  ? "Eager"
                               : of.schedule == Schedule::kLate ? "Late"
                                                                : "Lazy";
  return concat(of.place.name, schedule, of.ranks, "RanksStage", of.stage, name_of(of.dtype));
}
inline void PrintTo(const PlaceCase& of, std::ostream* out) {
  *out << name_of(of);
}
inline std::string name_of_case(const ::testing::TestParamInfo<PlaceCase>& info) {
  return name_of(info.param);
}

inline void expect_no_race(const test::Scenario& scenario) {
  EXPECT_THAT(Streams::get().races().found(), ::testing::IsEmpty()) << scenario.text();
  EXPECT_THAT(operators_that_waited(), ::testing::IsEmpty()) << scenario.text();
  EXPECT_EQ(pinned_frees_in_use(), 0) << scenario.text();
}

// Expects that the engine has held what was planned, in each category and on each tier.
inline void expect_as_planned(const test::Scenario& scenario, const test::Result& result) {
  for (const MemoryLine& line : result.memory) {
    const bool is_more = scenario.no_sync && line.category == "gradients" && line.tier == "device";
    if (line.category == "temporaries" || is_more) continue;
    EXPECT_EQ(line.measured_peak, line.planned) << line.category << " on " << line.tier << ", " << scenario.text();
  }
}

// Without a tier: on all tiers.
inline int64_t planned(const test::Result& result, const std::string& category, const std::string& tier = "") {
  int64_t bytes = 0;
  for (const MemoryLine& line : result.memory)
    if (line.category == category && (tier.empty() || line.tier == tier)) bytes += line.planned;
  return bytes;
}

// Expects that `offloads` trains on devices as `scenario` does on the CPU, in the planned memory. The two compute the
// gradient norm in different orders, so its last bits differ. Returns the result of `offloads`.
inline test::Result expect_bits_of(const test::Scenario& scenario, const test::Scenario& offloads) {
  const test::Result expected = test::train(scenario);
  test::Result result = test::train(offloads);
  EXPECT_EQ(result.steps.size(), expected.steps.size()) << scenario.text();
  if (::testing::Test::HasFailure()) return result;
  EXPECT_TRUE(result.values.equal(expected.values)) << scenario.text();
  for (size_t step = 0; step < result.steps.size(); ++step) {
    EXPECT_EQ(result.steps[step].applied, expected.steps[step].applied) << scenario.text();
    if (expected.steps[step].applied) {
      EXPECT_DOUBLE_EQ(result.steps[step].grad_norm, expected.steps[step].grad_norm) << scenario.text();
    }
  }
  expect_as_planned(scenario, result);
  return result;
}

// Steps of three micro-batches, with and without no_sync.
inline std::vector<test::Scenario> accumulating(test::Scenario scenario) {
  scenario.steps = 2;
  scenario.config.grad_accumulation_steps = 3;
  test::Scenario unsynced = scenario;
  unsynced.no_sync = true;
  return {scenario, unsynced};
}

// An engine on the devices of each case, and the same on the CPU, whose bits it shall have. After each test nothing
// must have raced.
class Placements : public ::testing::TestWithParam<PlaceCase> {
 protected:
  void SetUp() override { begin_on_devices(GetParam().schedule, /*seed=*/3); }
  void TearDown() override {
    end_on_devices();
    if (must_not_wait_) expect_no_race(scenario());
  }

  static const Place& place() { return GetParam().place; }
  static int ranks() { return GetParam().ranks; }
  static int stage() { return GetParam().stage; }
  static test::Scenario scenario(DType dtype = GetParam().dtype) {
    test::Scenario made = test::make_scenario(ranks(), stage());
    made.config.compute_dtype = dtype;
    made.config.moment_dtype = place().moments;
    made.model.ballast = 20'000;  // so that a shard has several blocks
    made.model.uneven_ballast = true;
    made.steps = 3;
    return made;
  }
  // Returns the scenario on devices, with everything in its place.
  test::Scenario placed(test::Scenario scenario, const Place& where = place(), int buffer_count = 2) const {
    Config& config = scenario.config;
    config.offload_param = {.device = where.parameters, .nvme_path = {directory_.path()}, .buffer_count = buffer_count};
    config.offload_param.max_in_memory = where.max_in_memory;
    config.offload_optimizer = {.device = where.states,
                                .ratio = where.ratio,
                                .nvme_path = {directory_.path(), other_.path()},
                                .buffer_count = buffer_count};
    config.offload.gradients = where.gradients;
    return on_devices(std::move(scenario));
  }
  test::Result expect_the_same_bits(const test::Scenario& scenario) const {
    return expect_bits_of(scenario, placed(scenario));
  }
  // Runs `body` on each rank of the CPU and of the devices, and expects the same values at the end.
  void expect_the_same_values(const test::Scenario& scenario, const std::function<void(test::Rank&)>& body) const {
    std::vector<at::Tensor> values;
    for (const test::Scenario& each : {scenario, placed(scenario)}) {
      test::ThreadWorld world(each);
      const auto errors = world.run([&](test::Rank& rank) {
        at::set_num_threads(1);
        body(rank);
        rank.finish();
      });
      ASSERT_THAT(errors, ::testing::Each("")) << scenario.text();
      values.push_back(world.rank(0).result.values);
    }
    EXPECT_TRUE(values[0].equal(values[1])) << scenario.text();
  }

  testing::TemporaryDirectory directory_, other_;
  bool must_not_wait_ = true;
};

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
