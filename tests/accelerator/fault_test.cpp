// What fails on one device ends every rank.
#include <gmock/gmock.h>

#include "accelerator/support.h"
#include "support/forwarding_comm.h"
#include "support/release.h"
#include "zeroshard/error.h"

namespace zeroshard::accelerator {
namespace {

using test::make_scenario;
using test::Rank;
using test::Scenario;
using test::ThreadWorld;

// The n-th collective of the device and every later one throws, and the communicator is aborted.
class FailingDevice final : public ForwardingComm {
 public:
  FailingDevice(Comm& inner, int64_t fail_at) : ForwardingComm(inner), wrapped_(inner), fail_at_(fail_at) {}
  int64_t calls() const { return calls_; }

  Comm& host() override { return inner().host(); }
  std::optional<int64_t> history() const override { return wrapped_.history(); }
  void report_difference(std::string_view where) override { inner().report_difference(where); }
  void await_device(std::string_view what) override { inner().await_device(what); }
  void check() override { inner().check(); }

 private:
  void before(OpKind kind, int64_t, std::string_view tag) override {
    if (++calls_ < fail_at_) return;
    if (failure_.empty()) {
      failure_ = concat("injected fault at call ", calls_, ", ", name_of(kind), "('", tag, "') of rank ", rank());
      inner().abort(failure_);
    }
    throw CommError(failure_);
  }

  const Comm& wrapped_;
  int64_t fail_at_;
  int64_t calls_ = 0;
  std::string failure_;
};

class DeviceFaults : public ::testing::TestWithParam<Schedule> {
 protected:
  void SetUp() override { begin_on_devices(GetParam(), /*seed=*/11); }
  void TearDown() override { end_on_devices(); }
};

INSTANTIATE_TEST_SUITE_P(Schedules, DeviceFaults, ::testing::Values(Schedule::kLate, Schedule::kLazy));

// The batches are there before: a rank that itself waits for its device within a pass waits for the missing peer.
void train_without_waits(Rank& rank) {
  at::set_num_threads(1);
  const test::Batch batch = test::batch_of(rank.scenario, rank.gather.rank(), /*step=*/0, /*micro_batch=*/0);
  rank.make_engine();
  for (int step = 0; step < rank.scenario.steps; ++step) {
    rank.engine->begin_forward(/*training=*/true);
    rank.engine->backward(test::loss_of(rank.model, rank.scenario, rank.gather.rank(), step, batch, rank.engine.get()));
    rank.engine->step();
  }
  rank.reduce.host().barrier("end");  // a rank that needs nothing more of the others still hears of their end
}

// Fails the n-th collective of one device for n = 1, 1 + stride, ... until none fails.
void fail_every_call(const Scenario& scenario, int bad_rank, bool bad_gather, int64_t stride) {
  for (int64_t fail_at = 1;; fail_at += stride) {
    ASSERT_LT(fail_at, 500);
    FailingDevice* failing = nullptr;
    ThreadWorld world(scenario, [&](Comm& comm, bool is_gather) -> std::unique_ptr<Comm> {
      const bool bad = comm.rank() == bad_rank && is_gather == bad_gather;
      auto decorated = std::make_unique<FailingDevice>(comm, bad ? fail_at : INT64_MAX);
      if (bad) failing = decorated.get();
      return decorated;
    });
    const std::vector<std::string> errors = world.run(train_without_waits);
    if (failing->calls() < fail_at) {
      for (const std::string& error : errors) EXPECT_EQ(error, "");
      EXPECT_GT(fail_at, 5);
      return;
    }
    for (const std::string& error : errors) {
      EXPECT_THAT(error, ::testing::HasSubstr("injected fault"))
          << scenario.text() << ", call " << fail_at << " of rank " << bad_rank;
    }
  }
}

TEST_P(DeviceFaults, EveryFailingCollectiveEndsEveryRank) {
  for (const int stage : {1, 3}) {
    Scenario scenario = on_devices(make_scenario(2, stage));
    scenario.steps = 1;
    const int64_t stride = zeroshard::testing::release() ? 1 : 3;
    fail_every_call(scenario, 1, /*bad_gather=*/true, stride);
    fail_every_call(scenario, 0, /*bad_gather=*/false, stride);
  }
}

TEST_P(DeviceFaults, AlsoOfThreeRanks) {
  Scenario scenario = on_devices(make_scenario(3, 3));
  scenario.steps = 1;
  fail_every_call(scenario, 2, /*bad_gather=*/true, 5);
}

}  // namespace
}  // namespace zeroshard::accelerator
