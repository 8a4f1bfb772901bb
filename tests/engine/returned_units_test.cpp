#include <utility>

#include "engine/support.h"

// What is left of an engine that has returned its units: every call that only training needs is an error.
namespace zeroshard::test {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;
using Call = std::pair<const char*, std::function<void(Engine&)>>;

const at::Tensor& some_values() {
  static const at::Tensor values = at::empty({0});
  return values;
}

const std::vector<Call>& training_calls() {
  static const std::vector<Call> calls = {
      {"begin_forward", [](Engine& engine) { engine.begin_forward(true); }},
      {"pre_forward", [](Engine& engine) { engine.pre_forward(0); }},
      {"post_forward", [](Engine& engine) { engine.post_forward(0, {}); }},
      {"end_unit_forward", [](Engine& engine) { engine.end_unit_forward(0, {}); }},
      {"begin_backward", [](Engine& engine) { engine.begin_backward(); }},
      {"end_backward", [](Engine& engine) { engine.end_backward(); }},
      {"backward", [](Engine& engine) { engine.backward(at::empty({})); }},
      {"zero_grad", [](Engine& engine) { engine.zero_grad(); }},
      {"end_micro_batch", [](Engine& engine) { engine.end_micro_batch(); }},
      {"step", [](Engine& engine) { engine.step(); }},
      {"prepare_step", [](Engine& engine) { engine.prepare_step(); }},
      {"slices", [](Engine& engine) { engine.slices(); }},
      {"finish_step", [](Engine& engine) { engine.finish_step({.applied = true}); }},
      {"set_moment", [](Engine& engine) { engine.set_moment("units.0.0", 0, some_values()); }},
      {"slice", [](Engine& engine) { engine.slice(0, 0); }},
      {"full_state", [](Engine& engine) { engine.full_state(0, 0, std::nullopt, "exp_avg"); }},
      {"local_grad", [](Engine& engine) { engine.local_grad(0, 0); }},
      {"full_grad", [](Engine& engine) { engine.full_grad(0, 0); }},
      {"grad_norms", [](Engine& engine) { engine.grad_norms(); }},
      {"set_grad", [](Engine& engine) { engine.set_grad(0, 0, 0, some_values()); }},
      {"set_weights", [](Engine& engine) { engine.set_weights(0, 0, 0, some_values()); }},
      {"local_param", [](Engine& engine) { engine.local_param(0, 0); }},
      {"await_readers", [](Engine& engine) { engine.await_readers_of_master_weights(); }},
      {"publish_master_weights", [](Engine& engine) { engine.publish_master_weights(); }},
      {"gather", [](Engine& engine) { engine.gather({0}); }},
      {"save_checkpoint", [](Engine& engine) { engine.save_checkpoint("nowhere", "tag", 1); }},
      {"load_checkpoint", [](Engine& engine) { engine.load_checkpoint("nowhere"); }},
      {"save_weights", [](Engine& engine) { engine.save_weights("nowhere", "weights"); }},
  };
  return calls;
}

// What a rank has done before it returns its units.
const std::vector<std::pair<const char*, std::function<void(SavingRank&, const Scenario&)>>> kBefore = {
    {"nothing", [](SavingRank&, const Scenario&) {}},
    {"step", [](SavingRank& rank, const Scenario& scenario) { rank.train_step(scenario, 0); }},
    {"backward",
     [](SavingRank& rank, const Scenario& scenario) {
       rank.engine->begin_forward(true);
       rank.engine->backward(loss_of(*rank.model, scenario, rank.rank, 0, 0, rank.engine.get()));
     }},
    {"a backward that has not ended",
     [](SavingRank& rank, const Scenario& scenario) {
       rank.engine->begin_forward(true);
       const at::Tensor loss = loss_of(*rank.model, scenario, rank.rank, 0, 0, rank.engine.get());
       rank.engine->begin_backward();
       rank.engine->scale_loss(loss).backward();
     }},
    {"gathered units",
     [](SavingRank& rank, const Scenario&) {
       rank.engine->gather({0, 1});
     }},
};

TEST(ReturnedUnits, LeaveAnEngineThatRefusesToTrain) {
  for (const int stage : {0, 1, 2, 3}) {
    for (const auto& [before, act] : kBefore) {
      SCOPED_TRACE(concat("stage ", stage, ", before: ", before));
      const Scenario scenario = make_scenario(2, stage);
      const auto errors = run_saving(scenario, [&](SavingRank& rank) {
        act(rank, scenario);
        // Below stage 3 one rank alone may return units, and then no call may wait for the other rank.
        if (stage < 3 && rank.rank != 0) return;
        for (size_t unit = 0; unit < kUnits; ++unit) rank.engine->return_unit(unit);
        for (const auto& [name, call] : training_calls())
          EXPECT_THAT([&] { call(*rank.engine); }, ThrowsMessage<StateError>(HasSubstr("has returned its parameters")))
              << name;
      });
      for (const std::string& error : errors) EXPECT_EQ(error, "");
    }
  }
}

TEST(ReturnedUnits, LeaveCallsThatEndAnEngine) {
  for (const int stage : {1, 3}) {
    for (const auto& [before, act] : kBefore) {
      SCOPED_TRACE(concat("stage ", stage, ", before: ", before));
      const Scenario scenario = make_scenario(2, stage);
      const auto errors = run_saving(scenario, [&](SavingRank& rank) {
        act(rank, scenario);
        Engine& engine = *rank.engine;
        engine.return_unit(0);
        engine.fail_backward("the caller gives up");
        engine.release({0, 1});
        engine.publish_update(/*ends=*/true);
        EXPECT_TRUE(engine.wait_for_checkpoint());
        engine.run_together("the end", [] {});
        EXPECT_EQ(engine.keep(at::empty({64})), nullptr);
        for (int twice = 0; twice < 2; ++twice)
          for (size_t unit = 0; unit < kUnits; ++unit) engine.return_unit(unit);
        for (const auto& unit : rank.model->params())
          for (const at::Tensor& param : unit) EXPECT_TRUE(param.isfinite().all().item<bool>());
      });
      for (const std::string& error : errors) EXPECT_EQ(error, "");
    }
  }
}

}  // namespace
}  // namespace zeroshard::test
