#pragma once
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "world/support.h"

// Engines that save and load, whose ranks are threads.
namespace zeroshard::test {

// One rank. The engine outlives the call, since peers may read its memory.
struct SavingRank {
  void make_engine(const Scenario& scenario, Comm& gather, Comm& reduce, Comm& checkpoint, int first_seed) {
    at::set_num_threads(1);
    rank = gather.rank();
    const at::Device device = scenario.device_of(rank);
    model = std::make_unique<Model>(scenario.model, uint64_t(first_seed + rank) * 1000, device);
    EngineOptions options;
    options.config = scenario.config;
    options.device = device;
    engine = std::make_unique<Engine>(model->definitions(), std::move(options), gather, reduce, &checkpoint);
  }
  void train_step(const Scenario& scenario, int step) {
    engine->begin_forward(/*training=*/true);
    engine->backward(loss_of(*model, scenario, rank, step, 0, engine.get()));
    engine->step();
  }
  // Every parameter, in fp32.
  at::Tensor values() {
    std::vector<size_t> units(kUnits);
    for (size_t u = 0; u < kUnits; ++u) units[u] = u;
    engine->gather(units);
    std::vector<at::Tensor> values;
    for (const auto& unit : model->params())
      for (const at::Tensor& param : unit) values.push_back(param.detach().to(at::kFloat).reshape({-1}).cpu());
    const at::Tensor result = at::cat(values);
    engine->release(units);
    return result;
  }

  int rank = 0;
  std::unique_ptr<Model> model;
  std::unique_ptr<Engine> engine;
};

// Runs `body` on ranks with engines for `scenario`; what each threw, "" when nothing. `gather_of` and `checkpoint_of`
// may put a communicator in front of a rank's.
using DecorateComm = std::function<std::unique_ptr<Comm>(Comm&)>;
inline std::vector<std::string> run_saving(const Scenario& scenario, const std::function<void(SavingRank&)>& body,
                                           int first_seed = 0, const DecorateComm& gather_of = {},
                                           const DecorateComm& checkpoint_of = {}) {
  CommOptions options;
  options.timeout_ms = 10'000;  // a rank that waits for one that has failed alone is a bug
  const auto make_world = [&] {
    return scenario.device_of(0).is_cpu() ? make_local_world(scenario.world_size, options)
                                          : scenario.make_world(scenario.world_size);
  };
  const auto gather = make_world(), reduce = make_world();
  const auto checkpoint = make_local_world(scenario.world_size, options);
  std::vector<std::unique_ptr<Comm>> decorated, decorated_checkpoint;
  for (const auto& comm : gather) decorated.push_back(gather_of ? gather_of(*comm) : nullptr);
  for (const auto& comm : checkpoint) decorated_checkpoint.push_back(checkpoint_of ? checkpoint_of(*comm) : nullptr);
  std::vector<SavingRank> ranks(gather.size());
  return testing::run_threads(scenario.world_size, [&](int rank) {
    const auto r = size_t(rank);
    try {
      Comm& gathers = decorated[r] ? *decorated[r] : *gather[r];
      Comm& saves = decorated_checkpoint[r] ? *decorated_checkpoint[r] : *checkpoint[r];
      ranks[r].make_engine(scenario, gathers, *reduce[r], saves, first_seed);
      body(ranks[r]);
      if (ranks[r].engine) ranks[r].engine->wait_for_checkpoint();  // the communicator is its thread's until then
      checkpoint[r]->barrier("end");
    } catch (const std::exception& error) {
      for (const auto* world : {&gather, &reduce, &checkpoint}) (*world)[r]->abort(error.what());
      throw;
    }
  });
}

}  // namespace zeroshard::test
