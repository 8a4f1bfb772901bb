#include "engine/saves.h"

#include <algorithm>
#include <map>

#include "checkpoint/load.h"
#include "checkpoint/store.h"
#include "engine/parts.h"
#include "file/support.h"

namespace zeroshard::test {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;
using testing::TemporaryDirectory;
using ::testing::ThrowsMessage;

struct SaveParts : PassParts {
  using PassParts::PassParts;

  SaveRequest request(const std::string& root, const SaveOptions& save = {}) {
    return saves.make_request(root, "tag", 1, {}, save, /*staged=*/false);
  }
  // Begins a save in the background.
  void start(const std::string& root) {
    SaveRequest made = request(root);
    saves.saver().prepare(made);
    saves.start(std::move(made), 0);
  }

  Saves saves{options, plan, ranks, memory, *executor, *reducer, pass};
};

TEST(Saves, HaveNothingToWaitForBeforeTheFirst) {
  run_everywhere<SaveParts>([](SaveParts& parts) {
    EXPECT_FALSE(parts.saves.has_saver() || parts.saves.busy() || parts.saves.failed());
    parts.saves.wait_for_turn(Saves::kSaveCall);
    EXPECT_FALSE(parts.saves.has_saver());
    EXPECT_EQ(parts.saves.device_copies(), nullptr);
    EXPECT_FALSE(parts.saves.must_stage());
    EXPECT_TRUE(parts.saves.has_room_for_staging(int64_t{1} << 60));  // no limit is set
    for (int twice = 0; twice < 2; ++twice) parts.saves.retire();
  });
}

TEST(Saves, ShareTheStatesAmongTheRanks) {
  for (const int stage : {0, 1, 2, 3}) {
    SCOPED_TRACE(stage);
    std::vector<std::map<StateKey, int64_t>> saved(3);
    std::map<StateKey, int64_t> all;
    const auto errors = run_parts<SaveParts>(make_scenario(3, stage), [&](SaveParts& parts) {
      for (const StateSlice& slice : parts.request("nowhere").slices)
        saved[size_t(parts.rank())][{slice.name, slice.kind}] += slice.elements.size();
      if (parts.rank() != 0) return;
      for (const UnitLayout& unit : parts.plan.layouts)
        for (const ParamSpec& param : unit.params)
          for (const char* kind : {"weight", "exp_avg", "exp_avg_sq"}) all[{param.name(), kind}] = param.numel();
    });
    EXPECT_THAT(errors, Each(std::string()));
    std::map<StateKey, int64_t> sum;
    for (const auto& of_rank : saved)
      for (const auto& [key, numel] : of_rank) sum[key] += numel;
    EXPECT_EQ(sum, all);
  }
}

TEST(Saves, LeaveFrozenParametersOutIfTheySaveNone) {
  Scenario scenario = make_scenario(2, 3);
  scenario.model.frozen = true;
  const auto errors = run_parts<SaveParts>(scenario, [](SaveParts& parts) {
    const auto has_frozen = [&](const SaveOptions& save) {
      return std::ranges::any_of(parts.request("nowhere", save).slices,
                                 [](const StateSlice& slice) { return slice.name == "units.1.1"; });
    };
    if (parts.rank() == 0) {
      EXPECT_TRUE(has_frozen({}));
    }
    EXPECT_FALSE(has_frozen({.exclude_frozen = true}));
  });
  EXPECT_THAT(errors, Each(std::string()));
}

TEST(Saves, WriteInTheBackgroundWhatALoadChooses) {
  for (const int stage : {0, 1, 2, 3}) {
    SCOPED_TRACE(stage);
    const TemporaryDirectory root;
    const auto errors = run_parts<SaveParts>(make_scenario(2, stage), [&](SaveParts& parts) {
      parts.memory.groups->trained().front()->update_counts()[0] = 17;
      parts.pass.progress().set_skipped_in_a_row(3);
      const at::Tensor before = parts.values();
      parts.start(root.path());
      parts.saves.wait_for_turn(Saves::kSaveCall);
      EXPECT_TRUE(parts.saves.has_saver());
      EXPECT_FALSE(parts.saves.busy() || parts.saves.failed());
      EXPECT_TRUE(parts.saves.settle_last_save());
      parts.memory.groups->trained().front()->update_counts()[0] = 0;
      parts.pass.progress().set_skipped_in_a_row(0);
      for (ShardedGroup* const group : parts.memory.groups->trained()) group->my_shard().zero_();
      std::set<StateKey> chosen;
      LoadRequest request;
      request.root = root.path();
      request.wanted = [&](const Manifest& manifest, const TensorIndex& index) {
        return parts.saves.choose(
            manifest, index, {}, [](const auto&) { return std::vector<TensorState>(); }, chosen);
      };
      const auto loaded = load_checkpoint(request, parts.ranks.checkpoint(), posix_io());
      ASSERT_TRUE(loaded);
      EXPECT_TRUE(chosen.contains({"units.0.0", "weight"}) && chosen.contains({"units.4.3", "exp_avg_sq"}));
      parts.saves.take_updates(TensorIndex(loaded->manifest));
      parts.saves.take_scale(loaded->manifest);
      EXPECT_EQ(parts.memory.groups->trained().front()->update_counts()[0], 17);
      EXPECT_EQ(parts.pass.progress().skipped_in_a_row(), 3);
      EXPECT_TRUE(parts.values().equal(before));
      parts.saves.retire();
      EXPECT_FALSE(parts.saves.has_saver());
    });
    EXPECT_THAT(errors, Each(std::string()));
  }
}

TEST(Saves, TellOnAllRanksOfASaveThatFailed) {
  for (const auto on_error : {CheckpointConfig::OnError::kRaise, CheckpointConfig::OnError::kWarn}) {
    const TemporaryDirectory root;
    testing::put(root / "file", "x");
    Scenario scenario = make_scenario(2, 1);
    scenario.config.checkpoint.on_error = on_error;
    const auto errors = run_parts<SaveParts>(scenario, [&](SaveParts& parts) {
      parts.start(root / "file/below");
      parts.saves.saver().await_end();
      EXPECT_TRUE(parts.saves.failed());
      if (on_error == CheckpointConfig::OnError::kRaise) {
        EXPECT_THAT([&] { parts.saves.settle_last_save(); }, ThrowsMessage<IoError>(HasSubstr(root / "file")));
      } else {
        EXPECT_FALSE(parts.saves.settle_last_save());
      }
      EXPECT_TRUE(parts.saves.settle_last_save());  // an error is told once
    });
    EXPECT_THAT(errors, Each(std::string()));
  }
}

TEST(Saves, PlanTheMemoryOfTheLargestCopies) {
  run_everywhere<SaveParts>([](SaveParts& parts) {
    const int64_t& planned = parts.plan.bytes.at(Category::kCheckpointStaging, Tier::kHost);
    const int64_t before = planned;
    parts.saves.plan_staging(before + 100);
    parts.saves.plan_staging(1);
    EXPECT_EQ(planned, before + 100);
  });
}

TEST(Saves, RefuseAMixtureOfTwoCheckpoints) {
  run_everywhere<SaveParts>([](SaveParts& parts) {
    const StateKey weight{"units.0.0", "weight"}, moment{"units.0.0", "exp_avg"};
    parts.saves.check_not_half_loaded();
    for (int twice = 0; twice < 2; ++twice) parts.saves.begin_overwriting(weight, "runs/a");
    parts.saves.begin_overwriting(moment, "runs/a");
    EXPECT_THAT([&] { parts.saves.check_not_half_loaded(); }, ThrowsMessage<StateError>(HasSubstr("units.0.0")));
    EXPECT_THAT(parts.saves.half_loaded(), ElementsAre(Pair("units.0.0", "runs/a")));
    parts.saves.end_overwriting(weight);
    EXPECT_THAT(parts.saves.half_loaded(), IsEmpty());
    EXPECT_THROW(parts.saves.check_not_half_loaded(), StateError);  // the moment is still of another checkpoint
    parts.saves.end_overwriting(moment);
    parts.saves.check_not_half_loaded();
  });
}

}  // namespace
}  // namespace zeroshard::test
