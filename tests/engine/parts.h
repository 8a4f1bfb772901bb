#pragma once
#include <ATen/ops/full.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/consensus.h"
#include "engine/engine_build.h"
#include "engine/pass.h"
#include "optim/sharded_optimizer.h"
#include "world/support.h"

// Parts of engines, made without an engine.
namespace zeroshard::test {

// What the parts of one rank's engine refer to.
struct Foundation {
  Foundation(Rank& rank, Comm& checkpoint)
      : scenario(rank.scenario),
        model(rank.model),
        units(model.definitions()),
        options(options_of(rank, units)),
        ranks(rank.gather, rank.reduce, &checkpoint, {}, at::kCPU),
        plan(units, options, ranks),
        optimizer(options.optimizer, options.device, &plan.ledger),
        memory(units, options, plan, ranks, [] {}) {
    Executor::Callbacks callbacks;
    callbacks.on_unit_backward_ended = [this](size_t unit) {
      if (on_unit_backward_ended) on_unit_backward_ended(unit);
    };
    executor = make_executor(units, plan, ranks, memory, std::move(callbacks));
    reducer = make_reducer(options, plan, ranks, memory);
  }

  int rank() const { return ranks.all.rank(); }
  const at::Tensor& param(size_t unit, size_t index) const { return model.params()[unit][index]; }
  // Reduces a gradient of every trained parameter. Its elements are `value` on this rank.
  void reduce(double value) {
    reducer->begin_backward(executor->needed(), /*sync=*/true, ranks.gather);
    for (size_t u = kUnits; u-- > 0;) {
      for (size_t i = 0; i < model.params()[u].size(); ++i)
        if (param(u, i).requires_grad()) reducer->add(u, i, at::full(param(u, i).sizes(), value), /*sync=*/true);
      reducer->end_unit_backward(u);
    }
    reducer->launch_all(/*sync=*/true);
    reducer->end_backward(/*sync=*/true);
  }
  // Every parameter. No rank goes on while another one reads its shards.
  at::Tensor values() {
    std::vector<at::Tensor> values;
    for (size_t u = 0; u < kUnits; ++u) {
      executor->hold(u);
      for (const at::Tensor& param : model.params()[u]) values.push_back(param.detach().reshape({-1}).clone());
      executor->release(u);
    }
    ranks.gather.barrier("values");
    return at::cat(values);
  }

  const Scenario& scenario;
  Model& model;
  std::vector<UnitDefinition> units;
  EngineOptions options;
  Ranks ranks;
  EnginePlan plan;
  ShardedOptimizer optimizer;
  Memory memory;
  std::function<void(size_t)> on_unit_backward_ended;
  std::unique_ptr<Executor> executor;
  std::unique_ptr<Reducer> reducer;

 private:
  static EngineOptions options_of(const Rank& rank, std::vector<UnitDefinition>& units) {
    EngineOptions options;
    options.config = rank.scenario.config;
    return completed(std::move(options), units);
  }
};

// With the passes, and the forward of the model.
struct PassParts : Foundation {
  PassParts(Rank& rank, Comm& checkpoint) : Foundation(rank, checkpoint) {
    on_unit_backward_ended = [this](size_t unit) { pass.end_unit_backward(unit); };
    pass.install_hooks(units);
  }

  at::Tensor forward(int step) {
    const Batch batch = batch_of(scenario, rank(), step, 0);
    at::Tensor x = batch.input;
    for (size_t u = 0; u < kUnits; ++u) {
      executor->pre_forward(u, /*recomputing=*/false);
      x = model.forward(u, x);
      pass.add_output(u, x);
      executor->post_forward(u, /*recomputing=*/false);
    }
    return at::mse_loss(x, batch.target);
  }
  // A whole pass, whose gradients then wait for the step.
  void train(int step) {
    pass.begin_forward(/*training=*/true);
    const at::Tensor loss = forward(step);
    pass.begin(/*sync=*/true);
    loss.backward();
    pass.end();
  }

  Pass pass{options.config, ranks, *executor, *reducer};
};

// Runs `body` with the parts of each rank. The parts outlive the calls, since peers may read their memory. Returns what
// each rank threw, "" when nothing.
template <typename Parts>
std::vector<std::string> run_parts(const Scenario& scenario, const std::function<void(Parts&)>& body) {
  CommOptions options;
  options.timeout_ms = 10'000;  // a rank that waits for one that has failed alone is a bug
  Scenario timed = scenario;
  timed.make_world = [&](int world_size) { return make_local_world(world_size, options); };
  const auto checkpoint = make_local_world(scenario.world_size, options);
  ThreadWorld world(timed);
  std::vector<std::unique_ptr<Parts>> parts(checkpoint.size());
  return world.run([&](Rank& rank) {
    at::set_num_threads(1);
    const auto r = size_t(rank.number());
    parts[r] = std::make_unique<Parts>(rank, *checkpoint[r]);
    body(*parts[r]);
  });
}

// Runs `body` at every stage with one and two ranks. Nothing may throw.
template <typename Parts>
void run_everywhere(const std::function<void(Parts&)>& body) {
  for (const int stage : {0, 1, 2, 3}) {
    for (const int world_size : {1, 2}) {
      SCOPED_TRACE(concat("stage ", stage, ", world ", world_size));
      for (const std::string& error : run_parts<Parts>(make_scenario(world_size, stage), body)) EXPECT_EQ(error, "");
    }
  }
}

}  // namespace zeroshard::test
