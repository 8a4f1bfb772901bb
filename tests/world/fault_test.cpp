#include "world/support.h"

namespace zeroshard::test {
namespace {

// Fails the n-th call of one communicator of one rank for n = 1, 2, ... until none fails: the rank at fault and every
// other rank throw, and nobody hangs or crashes.
void fail_every_call(const Scenario& scenario, int bad_rank, bool bad_gather) {
  for (int64_t fail_at = 1;; ++fail_at) {
    ASSERT_LT(fail_at, 500);
    FaultComm* fault = nullptr;
    ThreadWorld world(scenario, [&](Comm& comm, bool is_gather) -> std::unique_ptr<Comm> {
      const bool bad = comm.rank() == bad_rank && is_gather == bad_gather;
      auto decorated = std::make_unique<FaultComm>(comm, bad ? fail_at : INT64_MAX);
      if (bad) fault = decorated.get();
      return decorated;
    });
    const std::vector<std::string> errors = world.run([](Rank& rank) {
      rank.train();
      rank.reduce.barrier("end");  // a rank that needs nothing more of the others still hears of their end
    });
    if (fault->calls() < fail_at) {
      for (const std::string& error : errors) EXPECT_EQ(error, "");
      EXPECT_GT(fail_at, 5);
      return;
    }
    for (const std::string& error : errors) {
      EXPECT_NE(error.find("injected fault"), std::string::npos)
          << scenario.text() << ", call " << fail_at << " of rank " << bad_rank << ": '" << error << "'";
    }
  }
}

// A program that goes on after a CommError is told so by each later call.
TEST(Faults, ABackwardAfterAFailureThrowsTheSame) {
  for (const int stage : {0, 1, 2}) {
    for (int64_t fail_at = 1;; ++fail_at) {
      ASSERT_LT(fail_at, 500);
      FaultComm* fault = nullptr;
      ThreadWorld world(make_scenario(2, stage), [&](Comm& comm, bool is_gather) -> std::unique_ptr<Comm> {
        const bool bad = comm.rank() == 1 && !is_gather;
        auto decorated = std::make_unique<FaultComm>(comm, bad ? fail_at : INT64_MAX);
        if (bad) fault = decorated.get();
        return decorated;
      });
      const std::vector<std::string> errors = world.run([](Rank& rank) {
        rank.make_engine();
        try {
          for (int step = 0; step < 2; ++step) rank.train_step(step);
        } catch (const CommError& error) {
          EXPECT_NE(std::string(error.what()).find("injected fault"), std::string::npos) << error.what();
        }
        for (int again = 0; again < 2; ++again) {
          try {
            rank.train_step(2);
            break;
          } catch (const CommError& error) {
            EXPECT_NE(std::string(error.what()).find("injected fault"), std::string::npos) << error.what();
          }
        }
      });
      for (const std::string& error : errors)
        EXPECT_TRUE(error.empty() || error.find("injected fault") != std::string::npos) << error;
      if (fault->calls() < fail_at) break;
    }
  }
}

TEST(Faults, EveryFailingCallEndsEveryRank) {
  for (const int stage : {0, 2, 3}) {
    Scenario scenario = make_scenario(2, stage);
    scenario.steps = 2;
    fail_every_call(scenario, 1, /*bad_gather=*/true);
    fail_every_call(scenario, 0, /*bad_gather=*/false);
  }
}

TEST(Faults, WithThreeRanksAndAccumulation) {
  Scenario scenario = make_scenario(3, 3);
  scenario.steps = 1;
  scenario.config.grad_accumulation_steps = 2;
  scenario.config.overlap_comm = false;
  fail_every_call(scenario, 2, /*bad_gather=*/false);
  fail_every_call(scenario, 0, /*bad_gather=*/true);
}

TEST(Faults, RanksWithDifferentModelsAreToldSo) {
  Scenario scenario = make_scenario(3, 3);
  ThreadWorld world(scenario);
  ModelOptions other;
  other.unused = true;
  world.rank(1).model = Model(other, 7);
  for (const std::string& error : world.run([](Rank& rank) { rank.train(); })) {
    EXPECT_NE(error.find("the ranks disagree on the parameters of the model"), std::string::npos) << error;
    EXPECT_NE(error.find("rank 1"), std::string::npos) << error;
  }
}

TEST(Faults, ReadingAParameterOutsideOfItsUnitNamesIt) {
  const Scenario scenario = make_scenario(2, 3);
  ThreadWorld world(scenario);
  const auto errors = world.run([](Rank& rank) {
    rank.make_engine();
    rank.model.params()[2][0].sum();
  });
  for (const std::string& error : errors)
    EXPECT_NE(error.find("parameter 'units.2.0' is sharded"), std::string::npos) << error;
}

}  // namespace
}  // namespace zeroshard::test
