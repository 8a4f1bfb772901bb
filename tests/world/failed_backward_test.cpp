#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "world/support.h"
#include "zeroshard/error.h"

// Backward passes that throw on some ranks, and are tried again.
namespace zeroshard::test {
namespace {

using ::testing::HasSubstr;

struct Fault {
  int step = 0, micro_batch = 0;
  size_t unit = 0;              // whose output's gradient throws
  std::function<bool(int)> at;  // rank
};

at::Tensor loss_with_fault(const Rank& rank, int step, int micro_batch, const Fault* fault) {
  at::Tensor x = input_of(rank.scenario, rank.gather.rank(), step, micro_batch)
                     .to(to_scalar_type(rank.scenario.config.compute_dtype));
  for (size_t u = 0; u < kUnits; ++u) {
    x = rank.engine->unit(u, [&] { return rank.model.forward(u, x); });
    if (fault && fault->unit == u && fault->at(rank.gather.rank())) {
      x.register_hook([](const at::Tensor&) -> at::Tensor { throw std::runtime_error("planted"); });
    }
  }
  return at::mse_loss(x.to(at::kFloat), target_of(rank.gather.rank(), step, micro_batch));
}

// One step, which the fault makes begin again; what was thrown.
std::string train_step(Rank& rank, int step, const Fault* fault) {
  const auto micro_batches = int(rank.scenario.config.grad_accumulation_steps);
  std::string thrown;
  for (int micro_batch = 0; micro_batch < micro_batches; ++micro_batch) {
    const bool due = fault && fault->step == step && fault->micro_batch == micro_batch;
    rank.engine->begin_forward(/*training=*/true);
    const at::Tensor loss = loss_with_fault(rank, step, micro_batch, due ? fault : nullptr);
    try {
      if (rank.scenario.no_sync && micro_batch + 1 < micro_batches) {
        rank.engine->begin_backward(/*sync=*/false);
        try {
          rank.engine->scale_loss(loss).backward();
        } catch (const std::exception& error) {
          rank.engine->fail_backward(error.what());
          throw;
        }
        rank.engine->end_backward();
        rank.engine->end_micro_batch();
      } else {
        rank.engine->backward(loss);
      }
    } catch (const std::exception& error) {
      thrown = error.what();
      EXPECT_FALSE(rank.engine->has_pending_gradients());
      fault = nullptr;
      micro_batch = -1;
    }
  }
  rank.result.steps.push_back(rank.engine->step());
  const Progress& progress = rank.engine->progress();
  EXPECT_EQ(progress.global_steps, step + 1);
  EXPECT_EQ(progress.micro_steps, (step + 1) * micro_batches);
  EXPECT_EQ(progress.global_samples, progress.micro_steps * progress.batch.micro * rank.gather.world_size());
  return thrown;
}

Result train_with(const Scenario& scenario, const Fault& fault) {
  ThreadWorld world(scenario);
  std::vector<std::string> thrown(size_t(scenario.world_size));
  const auto errors = world.run([&](Rank& rank) {
    at::set_num_threads(1);
    rank.make_engine();
    for (int step = 0; step < scenario.steps; ++step)
      thrown[size_t(rank.gather.rank())] += train_step(rank, step, &fault);
    rank.finish();
  });
  int first = 0;
  while (!fault.at(first)) ++first;
  for (int rank = 0; rank < scenario.world_size; ++rank) {
    EXPECT_EQ(errors[size_t(rank)], "") << scenario.text();
    if (fault.at(rank)) {
      EXPECT_THAT(thrown[size_t(rank)], HasSubstr("planted"));
    } else {
      EXPECT_THAT(thrown[size_t(rank)], HasSubstr(concat("from rank ", first, ": planted")));
    }
  }
  return world.rank(0).result;
}

TEST(FailedBackward, TheStepBeginsAgainWithTheSameBits) {
  for (int world_size = 1; world_size <= 4; ++world_size) {
    for (const int stage : {0, 1, 2, 3}) {
      for (int variant = 0; variant < 6; ++variant) {
        Scenario scenario = make_scenario(world_size, stage);
        scenario.steps = 3;
        scenario.config.grad_accumulation_steps = 1 + variant % 2;
        scenario.config.overlap_comm = variant != 4;
        scenario.no_sync = variant == 3;
        const int failing = variant % world_size;
        Fault fault{variant % 3, int(variant == 5), size_t(variant) % kUnits, {}};
        fault.at = [=](int rank) { return variant == 2 || rank == failing; };
        SCOPED_TRACE(concat(scenario.text(), ", variant ", variant));
        const Result expected = train(scenario), got = train_with(scenario, fault);
        ASSERT_FALSE(::testing::Test::HasFailure());
        EXPECT_TRUE(got.values.equal(expected.values));
        for (size_t step = 0; step < expected.steps.size(); ++step)
          EXPECT_EQ(got.steps[step].grad_norm, expected.steps[step].grad_norm);
      }
    }
  }
}

// The rank that fails has begun a unit that gets no gradient there, and others wait for its reduction before they
// gather the next one: where no order is known yet, and where it is.
TEST(FailedBackward, AtEveryUnitOthersGetPastTheOneThatWasBegun) {
  for (const int world_size : {2, 3}) {
    for (size_t unit = 0; unit < kUnits; ++unit) {
      for (int variant = 0; variant < 8; ++variant) {
        Scenario scenario = make_scenario(world_size, 3);
        scenario.steps = 2;
        scenario.config.overlap_comm = variant % 2 == 0;
        const int failing = (variant / 2) % 2 == 0 ? 0 : world_size - 1;
        const Fault fault{variant / 4, 0, unit, [=](int rank) { return rank == failing; }};
        SCOPED_TRACE(concat(scenario.text(), ", unit ", unit, ", variant ", variant));
        const Result expected = train(scenario), got = train_with(scenario, fault);
        ASSERT_FALSE(::testing::Test::HasFailure());
        EXPECT_TRUE(got.values.equal(expected.values));
      }
    }
  }
}

TEST(FailedBackward, WhatWasClearedIsInNoStep) {
  for (const int stage : {0, 1, 2, 3}) {
    Scenario scenario = make_scenario(2, stage);
    scenario.steps = 1;
    SCOPED_TRACE(scenario.text());
    const Result expected = train(scenario);
    ThreadWorld world(scenario);
    const auto errors = world.run([&](Rank& rank) {
      at::set_num_threads(1);
      rank.make_engine();
      for (const std::string how : {"plain", "of the engine", "no_sync"}) {
        rank.engine->begin_forward(/*training=*/true);
        const at::Tensor loss = loss_of(rank.model, scenario, rank.gather.rank(), 7, 0, rank.engine.get());
        if (how == "no_sync") rank.engine->begin_backward(/*sync=*/false);
        how == "of the engine" ? rank.engine->backward(loss) : loss.backward();
        if (how == "no_sync") rank.engine->end_backward();
        EXPECT_TRUE(rank.engine->has_pending_gradients());
        rank.engine->zero_grad();
        EXPECT_FALSE(rank.engine->has_pending_gradients());
      }
      rank.train_step(0);
      EXPECT_EQ(rank.engine->step().grad_norm, 0);
      rank.finish();
    });
    for (const std::string& error : errors) EXPECT_EQ(error, "");
    EXPECT_TRUE(world.rank(0).result.values.equal(expected.values));
    EXPECT_EQ(world.rank(0).result.steps[0].grad_norm, expected.steps[0].grad_norm);
  }
}

// Exchanges do not start: for lack of memory, say.
class NeverExchangingComm final : public ForwardingComm {
 public:
  using ForwardingComm::ForwardingComm;

 private:
  void before(OpKind kind, int64_t, std::string_view) override {
    if (kind == OpKind::kExchange) throw std::runtime_error("planted");
  }
};

TEST(FailedBackward, ARankThatCannotDiscardItIsNotWaitedFor) {
  ThreadWorld world(make_scenario(2, /*stage=*/1), [](Comm& comm, bool is_gather) -> std::unique_ptr<Comm> {
    if (comm.rank() == 1 && !is_gather) return std::make_unique<NeverExchangingComm>(comm);
    return std::make_unique<FaultComm>(comm, INT64_MAX);
  });
  const auto errors = world.run([](Rank& rank) {
    at::set_num_threads(1);
    rank.make_engine();
    rank.engine->begin_forward(/*training=*/true);
    const at::Tensor loss = loss_of(rank.model, rank.scenario, rank.gather.rank(), 0, 0, rank.engine.get());
    if (rank.gather.rank() == 0) return rank.engine->backward(loss);
    EXPECT_ANY_THROW(rank.engine->backward(loss));
  });
  EXPECT_THAT(errors[0], HasSubstr("could not be discarded: planted"));
  EXPECT_EQ(errors[1], "");
}

}  // namespace
}  // namespace zeroshard::test
