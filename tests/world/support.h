#pragma once
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mse_loss.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/format.h"
#include "comm/local_comm.h"
#include "device/dtype.h"
#include "support/comm_world.h"
#include "support/random_tensor.h"
#include "support/test_comms.h"
#include "zeroshard/engine.h"

// A small model trained by engines whose ranks are threads: CPU autograd runs backward on the calling thread.
namespace zeroshard::test {

using testing::random_tensor;

inline constexpr int64_t kWidth = 48, kOut = 20, kRows = 6;
inline constexpr int kBlocks = 4;
inline constexpr size_t kUnits = kBlocks + 1;  // and the head

struct ModelOptions {
  bool frozen = false;  // the bias of block 1 has no gradient
  bool unused = false;  // block 2 has a parameter that no forward reads
  int64_t ballast = 0;  // elements of one more parameter of each block, so that rings have few slots
  bool frozen_ballast = false;
  bool uneven_ballast = false;  // the gradients of its elements differ
};

// kBlocks times x + gelu(linear(layer_norm(x))), then a linear head. Of each unit: weight, bias, norm weight, norm
// bias.
class Model {
 public:
  Model(const ModelOptions& options, uint64_t seed, at::Device device = at::kCPU) : options_(options) {
    for (size_t u = 0; u < kUnits; ++u) {
      const int64_t out = u < kBlocks ? kWidth : kOut;
      std::vector<at::Tensor> params = {
          random_tensor({out, kWidth}, seed + u * 10, 0.2F), random_tensor({out}, seed + u * 10 + 1, 0.1F),
          random_tensor({kWidth}, seed + u * 10 + 2, 0.1F) + 1, random_tensor({kWidth}, seed + u * 10 + 3, 0.1F)};
      if (options.unused && u == 2) params.push_back(random_tensor({77}, seed + 99));
      if (options.ballast > 0 && u < kBlocks) params.push_back(random_tensor({options.ballast}, seed + 200 + u, 0.1F));
      for (at::Tensor& param : params) param = param.to(device);
      for (size_t i = 0; i < params.size(); ++i) params[i].set_requires_grad(!(options.frozen && u == 1 && i == 1));
      if (options.frozen_ballast && options.ballast > 0 && u < kBlocks) params.back().set_requires_grad(false);
      params_.push_back(std::move(params));
    }
  }
  std::vector<UnitDefinition> definitions() {
    std::vector<UnitDefinition> units;
    for (size_t u = 0; u < kUnits; ++u) {
      UnitDefinition unit;
      unit.name = "unit " + std::to_string(u);
      for (size_t i = 0; i < params_[u].size(); ++i) {
        ParamDefinition param;
        param.names = {concat("units.", u, ".", i)};
        param.shape = params_[u][i].sizes().vec();
        param.requires_grad = params_[u][i].requires_grad();
        unit.params.push_back(std::move(param));
      }
      unit.tensors = [this, u] {
        std::vector<std::vector<at::Tensor>> tensors;
        for (const at::Tensor& param : params_[u]) tensors.push_back({param});
        return tensors;
      };
      units.push_back(std::move(unit));
    }
    return units;
  }
  at::Tensor forward(size_t u, const at::Tensor& x) const {
    const std::vector<at::Tensor>& p = params_[u];
    const at::Tensor y = at::linear(at::layer_norm(x, {kWidth}, p[2], p[3]), p[0], p[1]);
    if (u == kBlocks) return y;
    const at::Tensor sum = x + at::gelu(y);
    if (options_.uneven_ballast) return sum + (p.back() * p.back()).mean();
    return options_.ballast > 0 ? sum + p.back().mean() : sum;
  }
  const std::vector<std::vector<at::Tensor>>& params() const { return params_; }

 private:
  ModelOptions options_;
  std::vector<std::vector<at::Tensor>> params_;
};

struct Scenario {
  int world_size = 1;
  Config config;
  ModelOptions model;
  int steps = 4;
  bool no_sync = false;                                       // for all but the last micro-batch
  std::function<bool(int rank, int step, size_t unit)> skip;  // units that a forward leaves out
  std::function<float(int rank, int step)> input_scale;
  // The head is used once more, behind block 1: whether that enters the rank's loss.
  std::function<bool(int rank, int step)> counts_aside;
  // Where a rank's model is, and what connects the ranks.
  std::function<at::Device(int rank)> device_of = [](int) { return at::Device(at::kCPU); };
  std::function<std::vector<std::unique_ptr<Comm>>(int world_size)> make_world = [](int world_size) {
    return make_local_world(world_size);
  };

  std::string text() const {
    return concat("world ", world_size, ", shard ", config.shard_ranks(), ", stage ", config.stage, ", overlap ",
                  config.overlap_comm, ", accumulation ", config.grad_accumulation_steps, ", ",
                  name_of(config.compute_dtype), ", persistence ", config.persistence_threshold, ", no_sync ", no_sync);
  }
};

inline Scenario make_scenario(int world_size, int stage) {
  Scenario scenario;
  scenario.world_size = scenario.config.world_size = world_size;
  scenario.config.stage = stage;
  scenario.config.persistence_threshold = 0;
  scenario.config.gradient_clipping = 0.05;  // below every norm that comes up
  scenario.config.optimizer = OptimizerConfig{};
  scenario.config.optimizer->lr = 0.01;
  scenario.config.optimizer->weight_decay = 0.1;
  return scenario;
}

// Of one rank.
struct Result {
  at::Tensor values;  // every parameter, in fp32
  std::vector<StepResult> steps;
  std::vector<MemoryLine> memory;
};

inline at::Tensor input_of(const Scenario& scenario, int rank, int step, int micro_batch) {
  const float scale = scenario.input_scale ? scenario.input_scale(rank, step) : 1;
  return random_tensor({kRows, kWidth}, uint64_t(1000 + rank * 100 + step * 10 + micro_batch)) * scale;
}

inline at::Tensor target_of(int rank, int step, int micro_batch) {
  return random_tensor({kRows, kOut}, uint64_t(5000 + rank * 100 + step * 10 + micro_batch));
}

// What a micro-batch of a rank is computed from, on its device.
struct Batch {
  at::Tensor input, target;
};

inline Batch batch_of(const Scenario& scenario, int rank, int step, int micro_batch) {
  const at::Device device = scenario.device_of(rank);
  const at::Tensor input = input_of(scenario, rank, step, micro_batch);
  return {input.to(to_scalar_type(scenario.config.compute_dtype)).to(device),
          target_of(rank, step, micro_batch).to(device)};
}

inline at::Tensor loss_of(const Model& model, const Scenario& scenario, int rank, int step, const Batch& batch,
                          Engine* engine) {
  at::Tensor x = batch.input, aside;
  for (size_t u = 0; u < kUnits; ++u) {
    if (scenario.skip && scenario.skip(rank, step, u)) continue;
    const auto forward = [&] { return model.forward(u, x); };
    x = engine ? engine->unit(u, forward) : forward();
    if (u != 1 || !scenario.counts_aside) continue;
    const auto head = [&] { return model.forward(kBlocks, x); };
    aside = engine ? engine->unit(kBlocks, head) : head();
  }
  x = x.narrow(1, 0, kOut);  // where the head is left out
  const at::Tensor loss = at::mse_loss(x.to(at::kFloat), batch.target);
  return aside.defined() && scenario.counts_aside(rank, step) ? loss + aside.to(at::kFloat).mean() : loss;
}

inline at::Tensor loss_of(const Model& model, const Scenario& scenario, int rank, int step, int micro_batch,
                          Engine* engine) {
  return loss_of(model, scenario, rank, step, batch_of(scenario, rank, step, micro_batch), engine);
}

// One rank of a run. The engine outlives the call, since peers may read its memory.
struct Rank {
  Rank(const Scenario& scenario_, Comm& gather_, Comm& reduce_, const ReplicaComms& replication_ = {})
      : scenario(scenario_),
        gather(gather_),
        reduce(reduce_),
        replication(replication_),
        model(scenario_.model, /*seed=*/uint64_t(number()) * 1000, scenario_.device_of(number())) {}

  // Among all ranks.
  int number() const { return (replication.all != nullptr ? *replication.all : gather).rank(); }

  void make_engine() {
    EngineOptions options;
    options.config = scenario.config;
    options.device = scenario.device_of(number());
    engine = std::make_unique<Engine>(model.definitions(), std::move(options), gather, reduce, /*checkpoint=*/nullptr,
                                      replication);
  }
  void train_step(int step) {
    const auto micro_batches = int(scenario.config.grad_accumulation_steps);
    for (int micro_batch = 0; micro_batch < micro_batches; ++micro_batch) {
      engine->begin_forward(/*training=*/true);
      const at::Tensor loss = loss_of(model, scenario, number(), step, micro_batch, engine.get());
      engine->begin_backward(!scenario.no_sync || micro_batch + 1 == micro_batches);
      engine->scale_loss(loss).backward();
      engine->end_backward();
    }
    result.steps.push_back(engine->step());
  }
  void finish() {
    result.memory = engine->memory();
    std::vector<size_t> units;
    for (size_t u = 0; u < kUnits; ++u) units.push_back(u);
    engine->gather(units);
    std::vector<at::Tensor> values;
    for (const auto& unit : model.params()) {
      for (const at::Tensor& param : unit) values.push_back(param.detach().to(at::kFloat).reshape({-1}).cpu());
    }
    result.values = at::cat(values);
    engine->release(units);
  }
  void train() {
    at::set_num_threads(1);
    make_engine();
    for (int step = 0; step < scenario.steps; ++step) train_step(step);
    finish();
  }

  const Scenario& scenario;
  Comm& gather;
  Comm& reduce;
  ReplicaComms replication;
  Model model;
  std::unique_ptr<Engine> engine;
  Result result;
};

// Ranks as threads. A rank that throws aborts both communicators, as a program does; everything is freed after all
// threads have ended. `decorate` may put a communicator in front of a rank's.
class ThreadWorld {
 public:
  using Decorate = std::function<std::unique_ptr<Comm>(Comm& comm, bool is_gather)>;

  // `decorate_across` is for the communicators of several replicas: that of all ranks if its argument is true, else the
  // one between replicas.
  explicit ThreadWorld(const Scenario& scenario, const Decorate& decorate = {}, const Decorate& decorate_across = {})
      : scenario_(scenario) {
    const int ranks = scenario.world_size, group = scenario.config.shard_ranks();
    const auto add_world = [&](int first, int stride, int count, bool is_first_kind, const Decorate& with) {
      auto world = scenario.make_world(count);
      for (int i = 0; i < count; ++i) {
        Comm* comm = comms_.emplace_back(std::move(world[size_t(i)])).get();
        if (with) comm = decorated_.emplace_back(with(*comm, is_first_kind)).get();
        of_rank_[size_t(first + i * stride)].push_back(comm);
      }
    };
    of_rank_.resize(size_t(ranks));
    for (const bool is_gather : {true, false})
      for (int first = 0; first < ranks; first += group) add_world(first, 1, group, is_gather, decorate);
    if (group < ranks) {
      add_world(0, 1, ranks, true, decorate_across);
      for (int first = 0; first < group; ++first) add_world(first, group, ranks / group, false, decorate_across);
    }
    for (const std::vector<Comm*>& own : of_rank_)
      ranks_.push_back(std::make_unique<Rank>(scenario_, *own[0], *own[1],
                                              own.size() > 2 ? ReplicaComms{own[2], own[3]} : ReplicaComms{}));
  }
  Rank& rank(int rank) { return *ranks_[size_t(rank)]; }

  // What each rank threw, "" when nothing.
  std::vector<std::string> run(const std::function<void(Rank&)>& body) {
    return testing::run_threads(scenario_.world_size, [&](int rank) {
      try {
        body(*ranks_[size_t(rank)]);
      } catch (const std::exception& error) {
        for (Comm* const comm : of_rank_[size_t(rank)]) comm->abort(error.what());
        throw;
      }
    });
  }
  // Trains on all ranks; checks that every rank ends with the same values. Returns rank 0's result.
  Result train() {
    for (const std::string& error : run([](Rank& rank) { rank.train(); })) EXPECT_EQ(error, "") << scenario_.text();
    if (::testing::Test::HasFailure()) return {};
    for (const auto& rank : ranks_) {
      EXPECT_TRUE(rank->result.values.equal(ranks_[0]->result.values)) << scenario_.text();
      for (size_t i = 0; i < rank->result.steps.size(); ++i) {
        const double norm = rank->result.steps[i].grad_norm, expected = ranks_[0]->result.steps[i].grad_norm;
        EXPECT_TRUE(norm == expected || (std::isnan(norm) && std::isnan(expected))) << scenario_.text();
      }
    }
    return ranks_[0]->result;
  }

 private:
  Scenario scenario_;
  std::vector<std::unique_ptr<Comm>> comms_, decorated_;
  std::vector<std::vector<Comm*>> of_rank_;  // gather, reduce, and with several replicas: all, replicas
  std::vector<std::unique_ptr<Rank>> ranks_;
};

inline Result train(const Scenario& scenario, const ThreadWorld::Decorate& decorate = {},
                    const ThreadWorld::Decorate& decorate_across = {}) {
  return ThreadWorld(scenario, decorate, decorate_across).train();
}

inline int64_t peak_of(const Result& result, const std::string& category, const std::string& tier) {
  for (const MemoryLine& line : result.memory)
    if (line.category == category && line.tier == tier) return line.measured_peak;
  return 0;
}

// The same bits and norms; and, but for passes that differ, as many bytes on each tier as planned. Returns the result
// of `swapped`.
inline Result expect_same_training(const Scenario& scenario, const Scenario& swapped, bool plan_holds = true) {
  const Result expected = train(scenario);
  Result result = train(swapped);
  if (::testing::Test::HasFailure()) return result;
  EXPECT_TRUE(result.values.equal(expected.values)) << swapped.text();
  for (size_t i = 0; i < result.steps.size(); ++i) {
    EXPECT_EQ(result.steps[i].applied, expected.steps[i].applied) << swapped.text() << ", step " << i;
    const bool same_norm = result.steps[i].grad_norm == expected.steps[i].grad_norm;
    EXPECT_TRUE(!result.steps[i].applied || same_norm) << swapped.text() << ", step " << i;
  }
  for (const MemoryLine& line : result.memory)
    EXPECT_TRUE(!plan_holds || line.measured_peak == line.planned)
        << line.category << " on " << line.tier << ", " << swapped.text();
  return result;
}

// In fp16, with a second step that is not finite.
inline Scenario skipping_a_step(Scenario scenario) {
  scenario.config.compute_dtype = DType::kFloat16;
  scenario.config.fp16.enabled = true;
  scenario.config.fp16.initial_scale_power = 4;
  scenario.steps = 5;
  scenario.input_scale = [](int, int step) { return step == 1 ? 1e6F : 1.F; };
  return scenario;
}

}  // namespace zeroshard::test
