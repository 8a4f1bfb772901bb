// A script that waits for its device itself, while a peer is missing: the thread that watches the device ends the wait.
#include <gmock/gmock.h>
#include <stdlib.h>

#include <array>
#include <future>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "comm_c10d/device_watch.h"
#include "comm_c10d/make_comm.h"
#include "support/accelerator/device.h"
#include "support/accelerator/group.h"
#include "support/accelerator/kernels.h"
#include "support/accelerator/memory.h"
#include "world/support.h"
#include "zeroshard/error.h"
#include "zeroshard/world.h"

namespace zeroshard::accelerator {
namespace {

using test::Scenario;
using ::testing::HasSubstr;

constexpr int64_t kLongMs = 600'000;  // a test that needs it fails by ctest's own time-out

Scenario make_scenario(int stage = 3) {
  Scenario scenario = test::make_scenario(/*world_size=*/2, stage);
  scenario.device_of = [](int rank) {
    set_current_device(rank);
    return device(rank);
  };
  return scenario;
}

// Two ranks, as World connects them: what breaks one communicator of a rank breaks both.
class Ranks {
 public:
  explicit Ranks(int64_t timeout_ms) : timeout_ms_(timeout_ms) {}

  // Collective. Belongs to the rank's own thread.
  test::Rank& make(int rank) {
    set_current_device(rank);
    CommOptions options;
    options.timeout_ms = timeout_ms_;
    options.failure = std::make_shared<SharedFailure>();
    options.device_watch = std::make_shared<DeviceWatch>();
    Place& place = places_[size_t(rank)];
    const auto connect = [&](const char* name) {
      const auto store = c10::make_intrusive<c10d::PrefixStore>(name, store_);
      return make_comm(make_group(store, rank, 2, rank), device(rank), options);
    };
    place.gather = connect("gather");
    place.reduce = connect("reduce");
    place.rank = std::make_unique<test::Rank>(scenario_, *place.gather, *place.reduce);
    place.rank->make_engine();
    place.rank->train_step(0);
    return *place.rank;
  }
  void destroy(int rank) {
    Place& place = places_[size_t(rank)];
    place.rank.reset();
    place.gather.reset();
    place.reduce.reset();
  }

 private:
  struct Place {
    std::unique_ptr<Comm> gather, reduce;
    std::unique_ptr<test::Rank> rank;
  };
  const Scenario scenario_ = make_scenario();
  const c10::intrusive_ptr<c10d::Store> store_ = c10::make_intrusive<c10d::HashStore>();
  int64_t timeout_ms_;
  std::array<Place, 2> places_;
};

// The script's own wait, inside a pass. Whatever it returns: the values may be garbage. `begins` is told when the host
// has given all to the device.
void wait_for_the_device(test::Rank& rank, std::promise<void>* begins = nullptr) {
  rank.engine->begin_forward(/*training=*/true);
  const at::Tensor loss = test::loss_of(rank.model, rank.scenario, rank.gather.rank(), 1, 0, rank.engine.get());
  if (begins != nullptr) begins->set_value();
  static_cast<void>(loss.item<float>());
}

std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const CommError& error) {
    return error.what();
  }
  return "";
}

class WatchedDevice : public ::testing::Test {
 protected:
  void SetUp() override {
    start();
    use_own_kernels(true);
    Streams::get().set_schedule(Schedule::kEager);
  }
  void TearDown() override {
    for (int i = 0; i < kDevices; ++i) Streams::get().wait_for_device(i);
  }
};

// Rank 0 waits for its device; rank 1 does `instead`. Returns what the next calls into rank 0's and rank 1's engines
// throw.
std::vector<std::string> run_while_one_waits(int64_t timeout_ms, const std::function<void(test::Rank&)>& instead) {
  Ranks ranks(timeout_ms);
  std::promise<void> begins, over;
  const std::array<int, 2> before = {aborted_groups(0), aborted_groups(1)};
  std::vector<std::string> errors = testing::run_threads(2, [&](int number) {
    at::set_num_threads(1);
    test::Rank& rank = ranks.make(number);
    if (number == 0) {
      wait_for_the_device(rank, &begins);
      over.set_value();
    } else {
      begins.get_future().wait();
      instead(rank);
      over.get_future().wait();
    }
    // Both of its communicators end, when it hears of the failure. The test's time ends if they do not.
    while (aborted_groups(number) < before[size_t(number)] + 2) std::this_thread::yield();
    rank.engine->begin_forward(/*training=*/true);
  });
  return errors;
}

TEST_F(WatchedDevice, ARankThatNeverComesIsNamed) {
  const auto errors = run_while_one_waits(/*timeout_ms=*/3000, [](test::Rank&) {});
  for (const std::string& error : errors) {
    EXPECT_THAT(error, HasSubstr("rank 0: the device waits in collective"));
    EXPECT_THAT(error, HasSubstr("not known to have called it: rank 1"));
  }
}

TEST_F(WatchedDevice, ARankThatThrowsIsNamedWithItsReason) {
  const auto errors = run_while_one_waits(kLongMs, [](test::Rank& rank) { rank.gather.abort("the data ran out"); });
  EXPECT_THAT(errors[0], HasSubstr("the data ran out [reported by rank 1]"));
  EXPECT_THAT(errors[1], HasSubstr("the data ran out [reported by rank 1]"));
}

// Gathers of units of one size end, with mixed data; the next one waits for ever.
TEST_F(WatchedDevice, ARankThatGathersAnotherUnitIsNamed) {
  const auto errors = run_while_one_waits(kLongMs, [](test::Rank& rank) {
    rank.engine->begin_forward(/*training=*/true);
    const at::Tensor input = test::batch_of(rank.scenario, 1, 1, 0).input;
    static_cast<void>(rank.engine->unit(1, [&] { return rank.model.forward(1, input); }));
  });
  for (const std::string& error : errors) {
    EXPECT_THAT(error, HasSubstr("ranks disagree: in collective #"));
    EXPECT_THAT(error, HasSubstr("rank 0 called"));
    EXPECT_THAT(error, HasSubstr("rank 1 called"));
  }
}

TEST_F(WatchedDevice, AnEngineThatIsGoneIsWatchedNoMoreAndTheNextOneIs) {
  for (const bool fails : {false, true, false, true}) {
    Ranks ranks(fails ? 2000 : kLongMs);
    std::promise<void> over;
    const std::shared_future<void> is_over = over.get_future().share();
    const auto errors = testing::run_threads(2, [&](int number) {
      at::set_num_threads(1);
      test::Rank& rank = ranks.make(number);
      if (fails && number == 0) {
        wait_for_the_device(rank);
        over.set_value();
      } else if (fails) {
        is_over.wait();
      }
      rank.train_step(1);
    });
    for (int rank = 0; rank < 2; ++rank) {
      EXPECT_EQ(errors[size_t(rank)].empty(), !fails) << errors[size_t(rank)];
      ranks.destroy(rank);
    }
  }
}

TEST_F(WatchedDevice, AnotherEngineOfTheProcessTrainsOn) {
  Ranks broken(/*timeout_ms=*/2000), sound(kLongMs);
  std::promise<void> over;
  const std::shared_future<void> is_over = over.get_future().share();
  const auto errors = testing::run_threads(2, [&](int number) {
    at::set_num_threads(1);
    test::Rank& lost = broken.make(number);
    test::Rank& kept = sound.make(number);
    if (number == 0) {
      wait_for_the_device(lost);
      over.set_value();
    } else {
      is_over.wait();
    }
    EXPECT_THAT(error_of([&] { lost.train_step(1); }), HasSubstr("rank 1"));
    for (int step = 1; step < 4; ++step) kept.train_step(step);
    kept.finish();
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
}

// A device whose streams share one queue: CUDA_DEVICE_MAX_CONNECTIONS=1.
class OneQueue : public WatchedDevice {
 protected:
  void SetUp() override {
    ::setenv("CUDA_DEVICE_MAX_CONNECTIONS", "1", 1);
    WatchedDevice::SetUp();
  }
  void TearDown() override {
    WatchedDevice::TearDown();
    ::unsetenv("CUDA_DEVICE_MAX_CONNECTIONS");
    Streams::get().set_schedule(Schedule::kEager);
  }

  using Groups = std::array<c10::intrusive_ptr<c10d::ProcessGroup>, 2>;
  Groups make_groups(int rank) const {
    Groups groups;
    for (const size_t i : {0, 1}) {
      const auto store = c10::make_intrusive<c10d::PrefixStore>(i == 0 ? "gather" : "reduce", store_);
      groups[i] = make_group(store, rank, 2, rank);
    }
    return groups;
  }

 private:
  const c10::intrusive_ptr<c10d::Store> store_ = c10::make_intrusive<c10d::HashStore>();
};

// Gives a gather to `gather` and a sum to `reduce`, on rank 1 the other way round, and waits for the device.
void call_in_different_orders(Comm& gather, Comm& reduce) {
  const int rank = gather.rank();
  const at::Tensor data = at::ones({1 << 16}, at::TensorOptions().device(device(rank)));
  const at::Tensor sums = at::ones({1 << 16}, at::TensorOptions().device(device(rank)));
  const int64_t half = data.numel() / 2;
  std::vector<std::unique_ptr<Work>> works;
  for (const bool gathers : {rank == 0, rank != 0}) {
    if (gathers) {
      works.push_back(gather.all_gather({data.data_ptr(), 2 * half, DType::kFloat32},
                                        {data.data_ptr<float>() + half * rank, half, DType::kFloat32}, "unit 1"));
    } else {
      works.push_back(reduce.all_reduce({sums.data_ptr(), sums.numel(), DType::kFloat32}, ReduceOp::kSum, "unit 2"));
    }
  }
  for (const auto& work : works) work->wait();
  static_cast<void>(data.sum().item<float>());
  gather.check();
  reduce.check();
}

// What World keeps users from.
TEST_F(OneQueue, TwoCommunicatorsInDifferentOrdersWaitUntilTheTimeIsOver) {
  const auto errors = testing::run_threads(2, [&](int rank) {
    set_current_device(rank);
    CommOptions options;
    options.timeout_ms = 3000;
    options.failure = std::make_shared<SharedFailure>();
    options.device_watch = std::make_shared<DeviceWatch>();
    std::promise<void> failed;
    options.failure->listen(&failed, [&](const std::string&) { failed.set_value(); });
    const Groups groups = make_groups(rank);
    const auto gather = make_comm(groups[0], device(rank), options),
               reduce = make_comm(groups[1], device(rank), options);
    call_in_different_orders(*gather, *reduce);
    // The rank whose time is over first ends the other's wait for its device, maybe before the other hears why.
    EXPECT_EQ(failed.get_future().wait_for(std::chrono::seconds(60)), std::future_status::ready);
    gather->check();
  });
  for (const std::string& error : errors)
    EXPECT_THAT(error, HasSubstr("the collectives of several groups in different"));
}

Config make_config() {
  Config config = test::make_scenario(/*world_size=*/2, /*stage=*/3).config;
  config.timeout_ms = 60'000;
  return config;
}

TEST_F(OneQueue, AWorldHasOneCommunicatorWhichNamesDifferentOrders) {
  std::vector<std::unique_ptr<World>> worlds(2);
  const auto errors = testing::run_threads(2, [&](int rank) {
    set_current_device(rank);
    const Groups groups = make_groups(rank);
    worlds[size_t(rank)] = std::make_unique<World>(make_config(), device(rank), groups[0], groups[1]);
    World& world = *worlds[size_t(rank)];
    EXPECT_EQ(&world.gather(), &world.reduce());
    call_in_different_orders(world.gather(), world.reduce());
  });
  for (const std::string& error : errors) {
    EXPECT_THAT(error, HasSubstr("ranks disagree: in collective #"));
    EXPECT_THAT(error, HasSubstr("rank 0 called all_gather"));
  }
}

TEST_F(OneQueue, TrainsWithTheCpusBits) {
  for (const int stage : {0, 1, 2, 3}) {
    Scenario scenario = test::make_scenario(/*world_size=*/2, stage);
    scenario.counts_aside = [](int rank, int step) { return rank == 0 || step % 2 == 0; };
    const test::Result expected = test::train(scenario);
    scenario.device_of = make_scenario().device_of;
    const auto store = c10::make_intrusive<c10d::HashStore>();
    std::vector<std::unique_ptr<World>> worlds(2);
    std::vector<std::unique_ptr<test::Rank>> ranks(2);
    const auto errors = testing::run_threads(2, [&](int number) {
      set_current_device(number);
      const auto group = [&](const char* name) {
        return make_group(c10::make_intrusive<c10d::PrefixStore>(name, store), number, 2, number);
      };
      auto& world = worlds[size_t(number)];
      world = std::make_unique<World>(make_config(), device(number), group("gather"), group("reduce"));
      auto& rank = ranks[size_t(number)];
      rank = std::make_unique<test::Rank>(scenario, world->gather(), world->reduce());
      rank->train();
    });
    for (const std::string& error : errors) EXPECT_EQ(error, "") << stage;
    if (HasFailure()) return;
    EXPECT_TRUE(expected.values.equal(ranks[0]->result.values)) << stage;
  }
}

using WatchedDeviceDeathTest = WatchedDevice;

TEST_F(WatchedDeviceDeathTest, AProcessMayExitWhileItsDeviceWaits) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto exit_while_waiting = [] {
    auto& ranks = *new Ranks(kLongMs);  // never destroyed, as in a process that calls exit()
    std::promise<void> waits;
    for (int number = 0; number < 2; ++number) {
      std::thread([&ranks, &waits, number] {
        at::set_num_threads(1);
        test::Rank& rank = ranks.make(number);
        if (number == 1) return std::promise<void>().get_future().wait();
        wait_for_the_device(rank, &waits);
      }).detach();
    }
    waits.get_future().wait();
    std::exit(3);
  };
  EXPECT_EXIT(exit_while_waiting(), ::testing::ExitedWithCode(3), "");
}

}  // namespace
}  // namespace zeroshard::accelerator
