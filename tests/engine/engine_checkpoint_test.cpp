#include <ATen/ops/arange.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <filesystem>

#include "engine/support.h"
#include "file/support.h"
#include "support/forwarding_comm.h"
#include "zeroshard/checkpoint_files.h"
#include "zeroshard/error.h"

namespace zeroshard {
namespace {

namespace fs = std::filesystem;
using test::make_scenario;
using test::run_saving;
using test::SavingRank;
using test::Scenario;
using ::testing::_;
using ::testing::AllOf;
using testing::change_last_byte;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::Pair;
using testing::put;
using ::testing::StartsWith;
using testing::TemporaryDirectory;

using OnError = CheckpointConfig::OnError;

std::string message_of(const std::function<void()>& call) {
  return testing::message_of<Error>(call);
}

// Straight on, and by way of a checkpoint into an engine of another stage that began with other values.
TEST(EngineCheckpoint, TrainingGoesOnBitByBitAtAnyStage) {
  for (int stage = 0; stage <= 3; ++stage) {
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
      SCOPED_TRACE(concat("from stage ", stage, ", ", name_of(dtype)));
      const TemporaryDirectory root;
      Scenario scenario = make_scenario(2, stage);
      scenario.config.compute_dtype = dtype;
      std::vector<at::Tensor> expected(2), loaded(2), found(2);
      const auto straight = run_saving(scenario, [&](SavingRank& rank) {
        for (const int step : {0, 1}) rank.train_step(scenario, step);
        rank.engine->save_checkpoint(root.path(), "a", 2);
        loaded[size_t(rank.rank)] = rank.values();
        for (const int step : {2, 3}) rank.train_step(scenario, step);
        expected[size_t(rank.rank)] = rank.values();
      });
      EXPECT_THAT(straight, Each(""));
      scenario.config.stage = 3 - stage;
      const auto resumed = run_saving(
          scenario,
          [&](SavingRank& rank) {
            rank.train_step(scenario, 0);
            EXPECT_NE(rank.engine->load_checkpoint(root.path()), std::nullopt);
            EXPECT_TRUE(rank.values().equal(loaded[size_t(rank.rank)]));
            for (const int step : {2, 3}) rank.train_step(scenario, step);
            found[size_t(rank.rank)] = rank.values();
          },
          /*first_seed=*/7);
      EXPECT_THAT(resumed, Each(""));
      EXPECT_TRUE(found[0].equal(expected[0]));
      EXPECT_TRUE(found[1].equal(expected[1]));
    }
  }
}

TEST(EngineCheckpoint, ASaveThatOneRankCannotBeginFailsOnAll) {
  const std::vector<std::function<void(std::string & tag, CheckpointContents&)>> defects = {
      [](std::string& tag, CheckpointContents&) { tag = "../up"; },
      [](std::string&, CheckpointContents& contents) { contents.state = "{"; },
      [](std::string&, CheckpointContents& contents) {
        contents.buffers.push_back({"b", "buffer", at::zeros({4, 4}).t().slice(0, 0, 2), {2, 4}});
      },
      [](std::string&, CheckpointContents& contents) {
        contents.optimizer.push_back({"nobody", "optimizer.sum", at::zeros({4}), {4}});
      },
  };
  for (const bool async : {false, true}) {
    const TemporaryDirectory root;
    Scenario scenario = make_scenario(2, 2);
    scenario.config.checkpoint.async = async;
    std::vector<std::vector<std::string>> messages(2);
    const auto errors = run_saving(scenario, [&](SavingRank& rank) {
      for (const auto& defect : defects) {
        std::string tag = "a";
        CheckpointContents contents;
        if (rank.rank == 1) defect(tag, contents);
        messages[size_t(rank.rank)].push_back(
            message_of([&] { rank.engine->save_checkpoint(root.path(), tag, 1, contents); }));
      }
      rank.engine->save_checkpoint(root.path(), "b", 1);
      rank.engine->wait_for_checkpoint();
    });
    EXPECT_THAT(errors, Each("")) << "async: " << async;
    EXPECT_THAT(messages[0], Each(StartsWith("rank 1: "))) << "async: " << async;
    EXPECT_EQ(messages[0], messages[1]);
    EXPECT_EQ(list_checkpoints(root.path()).size(), 1U);
  }
}

TEST(EngineCheckpoint, RanksMustLoadTheSame) {
  const TemporaryDirectory root;
  std::vector<LoadOptions> others(4);
  others[0].tag = "a";
  others[1].strict = true;
  others[2].all_params = false;
  others[3].optimizer = false;
  std::vector<std::vector<std::string>> messages(2);
  const auto errors = run_saving(make_scenario(2, 1), [&](SavingRank& rank) {
    rank.engine->save_checkpoint(root.path(), "a", 1);
    rank.engine->wait_for_checkpoint();
    for (const LoadOptions& other : others) {
      const LoadOptions mine = rank.rank == 1 ? other : LoadOptions{};
      messages[size_t(rank.rank)].push_back(
          message_of([&] { static_cast<void>(rank.engine->load_checkpoint(root.path(), mine)); }));
    }
    EXPECT_NE(rank.engine->load_checkpoint(root.path(), others.back()), std::nullopt);
  });
  EXPECT_THAT(errors, Each(""));
  EXPECT_THAT(messages[0], Each(AllOf(StartsWith("rank 1: loads '"), HasSubstr("the same on every rank"))));
  EXPECT_EQ(messages[0], messages[1]);
}

// A load notices the last byte when it has overwritten what came before.
TEST(EngineCheckpoint, WhatIsHalfLoadedIsNotUsed) {
  const TemporaryDirectory root;
  const Scenario scenario = make_scenario(2, 2);
  const auto errors = run_saving(scenario, [&](SavingRank& rank) {
    rank.engine->save_checkpoint(root.path(), "old", 0);
    rank.engine->wait_for_checkpoint();
    const at::Tensor old = rank.values();
    rank.train_step(scenario, 0);
    rank.engine->save_checkpoint(root.path(), "new", 1);
    rank.engine->wait_for_checkpoint();
    if (rank.rank == 1) change_last_byte(root / "new/rank-00001.safetensors");
    LoadOptions strict;
    strict.strict = true;
    EXPECT_THAT(message_of([&] { rank.engine->load_checkpoint(root.path(), strict); }), HasSubstr("rank-00001"));
    const std::vector<std::function<void()>> uses = {
        [&] { rank.engine->begin_forward(true); },
        [&] { rank.engine->begin_backward(); },
        [&] { rank.engine->step(); },
        [&] { rank.engine->save_checkpoint(root.path(), "next", 2); },
        [&] { rank.engine->save_weights(root.path(), "model.safetensors"); },
    };
    for (const auto& use : uses)
      EXPECT_THAT(message_of(use), HasSubstr(concat("had read a part of ", root.path(), "/new")));
    EXPECT_THAT(rank.engine->half_loaded(), AllOf(Not(IsEmpty()), Each(Pair(_, concat(root.path(), "/new")))));
    LoadOptions weights;
    weights.optimizer = false;
    EXPECT_NE(rank.engine->load_checkpoint(root.path(), weights), std::nullopt);
    EXPECT_THAT(rank.engine->half_loaded(), IsEmpty());  // moments are
    EXPECT_THAT(message_of([&] { rank.engine->begin_forward(true); }), HasSubstr("with the same options"));
    EXPECT_NE(rank.engine->load_checkpoint(root.path()), std::nullopt);
    EXPECT_TRUE(rank.values().equal(old));
    rank.train_step(scenario, 1);
    LoadOptions part;
    part.all_params = false;
    EXPECT_NE(rank.engine->load_checkpoint(root.path(), part), std::nullopt);
    rank.train_step(scenario, 1);
  });
  EXPECT_THAT(errors, Each(""));
}

TEST(EngineCheckpoint, AnOlderOneReplacesAllThatADamagedOneHasOverwritten) {
  const TemporaryDirectory root;
  Scenario scenario = make_scenario(2, 2);
  scenario.model.frozen = true;
  const auto errors = run_saving(scenario, [&](SavingRank& rank) {
    SaveOptions without_frozen;
    without_frozen.exclude_frozen = true;
    rank.engine->save_checkpoint(root.path(), "old", 1, {}, without_frozen);
    rank.engine->save_checkpoint(root.path(), "new", 2);
    rank.engine->wait_for_checkpoint();
    if (rank.rank == 1) change_last_byte(root / "new/rank-00001.safetensors");
    const std::string lacks = concat(root / "new", " is damaged, and reading it has overwritten 'units.1.1' (weight)");
    EXPECT_THAT(message_of([&] { rank.engine->load_checkpoint(root.path()); }), HasSubstr(lacks));
    LoadOptions old;
    old.tag = "old";
    EXPECT_NE(rank.engine->load_checkpoint(root.path(), old), std::nullopt);
    EXPECT_THAT(message_of([&] { rank.engine->begin_forward(true); }),
                HasSubstr("'units.1.1' may be of two checkpoints"));
  });
  EXPECT_THAT(errors, Each(""));
}

// What comes after a save that has failed in the background.
TEST(EngineCheckpoint, OnErrorHoldsWhereverASaveIsWaitedFor) {
  for (const OnError on_error : {OnError::kRaise, OnError::kWarn}) {
    const TemporaryDirectory root;
    put(root / "file", "no directory");
    Scenario scenario = make_scenario(2, 3);
    scenario.config.checkpoint.on_error = on_error;
    const std::vector<std::function<void(Engine&)>> waits = {
        [](Engine& engine) { engine.wait_for_checkpoint(); },
        [&](Engine& engine) { engine.save_checkpoint(root / "good", "a", 1); },
        [&](Engine& engine) { static_cast<void>(engine.load_checkpoint(root / "good")); },
        [&](Engine& engine) { engine.save_weights(root / "good", "model.safetensors"); },
    };
    const auto errors = run_saving(scenario, [&](SavingRank& rank) {
      rank.engine->save_checkpoint(root / "good", "begin", 0);
      rank.engine->wait_for_checkpoint();
      for (size_t i = 0; i < waits.size(); ++i) {
        rank.engine->save_checkpoint(root / "file", "a", 1);
        const std::string message = message_of([&] { waits[i](*rank.engine); });
        EXPECT_EQ(message.empty(), on_error == OnError::kWarn) << i << ": " << message;
        if (on_error == OnError::kRaise) {
          EXPECT_THAT(message, HasSubstr(root / "file")) << i;
        }
        rank.engine->wait_for_checkpoint();
      }
    });
    EXPECT_THAT(errors, Each(""));
  }
}

// A synchronous save is not in the background.
TEST(EngineCheckpoint, OnErrorIsOfSavesInTheBackground) {
  const TemporaryDirectory root;
  put(root / "file", "no directory");
  Scenario scenario = make_scenario(2, 3);
  scenario.config.checkpoint.on_error = OnError::kWarn;
  scenario.config.checkpoint.async = false;
  const auto errors = run_saving(
      scenario, [&](SavingRank& rank) { EXPECT_THROW(rank.engine->save_checkpoint(root / "file", "a", 1), IoError); });
  EXPECT_THAT(errors, Each(""));
}

TEST(EngineCheckpoint, ALossScaleGoesFromDynamicToDynamic) {
  enum Kind { kNone, kFixed, kDynamic };
  const auto scenario_of = [](Kind kind, int64_t power) {
    Scenario scenario = make_scenario(1, 1);
    scenario.config.fp16.enabled = kind != kNone;
    scenario.config.compute_dtype = kind != kNone ? DType::kFloat16 : DType::kFloat32;
    scenario.config.fp16.loss_scale = kind == kFixed ? 128 : 0;
    scenario.config.fp16.initial_scale_power = int(power);
    return scenario;
  };
  for (const Kind saved : {kNone, kFixed, kDynamic}) {
    const TemporaryDirectory root;
    ASSERT_THAT(run_saving(scenario_of(saved, 10),
                           [&](SavingRank& rank) { rank.engine->save_checkpoint(root.path(), "a", 1); }),
                Each(""));
    for (const Kind loaded : {kNone, kFixed, kDynamic}) {
      const auto errors = run_saving(scenario_of(loaded, 4), [&](SavingRank& rank) {
        const double own = rank.engine->loss_scale();
        rank.engine->load_checkpoint(root.path());
        EXPECT_EQ(rank.engine->loss_scale(), saved == kDynamic && loaded == kDynamic ? 1024 : own)
            << "from " << saved << " to " << loaded;
      });
      EXPECT_THAT(errors, Each(""));
    }
  }
}

TEST(EngineExport, ReplacesAnExportInSeveralFiles) {
  const TemporaryDirectory out;
  for (const char* name : {"model.safetensors.index.json", "model-00001-of-00002.safetensors",
                           "model-00002-of-00002.safetensors", "config.json", "other-00001-of-00002.safetensors"})
    put(out / name, "x");
  const auto errors = run_saving(make_scenario(2, 3),
                                 [&](SavingRank& rank) { rank.engine->save_weights(out.path(), "model.safetensors"); });
  EXPECT_THAT(errors, Each(""));
  EXPECT_THAT(Directory::open(posix_io(), out.path()).list(),
              ElementsAre("config.json", "model.safetensors", "other-00001-of-00002.safetensors"));
}

// From the n-th gather on, no file may grow beyond a megabyte: also not one whose space is reserved.
class LimitingComm final : public ForwardingComm {
 public:
  LimitingComm(Comm& inner, int limit_at) : ForwardingComm(inner), limit_at_(limit_at) {}

 private:
  void before(OpKind kind, int64_t, std::string_view) override {
    if (kind != OpKind::kAllGather || --limit_at_ != 0) return;
    const rlimit limit{1 << 20, RLIM_INFINITY};
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }

  int limit_at_;
};

// Units of 16 MiB, so that a write fails while one of them is gathered.
TEST(EngineExport, AFailureLeavesNoFileAndNothingGathered) {
  constexpr int64_t kSide = 2048;
  const TemporaryDirectory out;
  std::signal(SIGXFSZ, SIG_IGN);
  const auto gather = make_local_world(2), reduce = make_local_world(2), checkpoint = make_local_world(2);
  LimitingComm limiting(*gather[0], 2);
  std::vector<std::unique_ptr<Engine>> engines(2);
  std::vector<std::vector<at::Tensor>> params(2);
  const auto errors = testing::run_threads(2, [&](int rank) {
    const auto r = size_t(rank);
    std::vector<UnitDefinition> units;
    for (int u = 0; u < 4; ++u) {
      params[r].push_back(at::zeros({kSide, kSide}).set_requires_grad(true));
      UnitDefinition unit;
      unit.name = concat("unit ", u);
      unit.params.push_back({{concat("w", u)}, {kSide, kSide}});
      unit.tensors = [tensor = params[r].back()] { return std::vector<std::vector<at::Tensor>>{{tensor}}; };
      units.push_back(std::move(unit));
    }
    EngineOptions options;
    options.config = make_scenario(2, 3).config;
    Comm& gathers = rank == 0 ? static_cast<Comm&>(limiting) : *gather[r];
    engines[r] =
        std::make_unique<Engine>(std::move(units), std::move(options), gathers, *reduce[r], checkpoint[r].get());
    EXPECT_THROW(engines[r]->save_weights(out.path(), "model.safetensors"), IoError);
    checkpoint[r]->barrier("end");
    for (const at::Tensor& param : params[r]) EXPECT_THROW(static_cast<void>(param.sum()), std::exception) << rank;
  });
  const rlimit unlimited{RLIM_INFINITY, RLIM_INFINITY};
  ::setrlimit(RLIMIT_FSIZE, &unlimited);
  EXPECT_THAT(errors, Each(""));
  EXPECT_TRUE(fs::is_empty(out.path()));
}

}  // namespace
}  // namespace zeroshard
