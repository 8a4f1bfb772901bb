#pragma once
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "base/format.h"
#include "engine/support.h"
#include "file/support.h"
#include "support/forwarding_comm.h"
#include "support/random.h"

// Saves in the background that begin to read late, and what they have written.
namespace zeroshard::test {

// A communicator of checkpoints whose broadcasts, of which a save has one before it writes, are late.
class LateComm final : public ForwardingComm {
 public:
  LateComm(Comm& inner, std::function<void()> before) : ForwardingComm(inner), before_(std::move(before)) {}

 private:
  void before(OpKind kind, int64_t, std::string_view) override {
    if (kind == OpKind::kBroadcast) before_();
  }
  std::function<void()> before_;
};

// In fp16, where each second step of rank 0 is infinite, and so skipped.
inline Scenario with_skipped_steps(Scenario scenario) {
  scenario.config.fp16.enabled = true;
  scenario.config.fp16.initial_scale_power = 4;
  scenario.config.fp16.hysteresis = 1;
  scenario.input_scale = [](int rank, int step) {
    return rank == 0 && step % 2 == 1 ? std::numeric_limits<float>::infinity() : 1;
  };
  return scenario;
}

inline DecorateComm late(std::function<void()> before) {
  return [before = std::move(before)](Comm& comm) { return std::make_unique<LateComm>(comm, before); };
}

// Saves read nothing while it is closed; what keeps it closed for too long has failed.
class Gate {
 public:
  explicit Gate(bool is_open = true) : is_open_(is_open) {}
  void open() { is_open_ = true; }
  void close() { is_open_ = false; }
  bool is_open() const { return is_open_; }
  DecorateComm decorate() {
    return late([this] {
      const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
      while (!is_open_ && std::chrono::steady_clock::now() < end)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    });
  }
  // Opens it later, on a thread that the caller joins: what does not wait is over by then.
  std::thread open_later(std::chrono::milliseconds after = std::chrono::milliseconds(50)) {
    return std::thread([this, after] {
      std::this_thread::sleep_for(after);
      open();
    });
  }

 private:
  std::atomic<bool> is_open_;
};

// Of a safetensors file, after the header, which has the tag.
inline std::string data_of(const std::string& path) {
  const std::string file = testing::contents_of(path);
  uint64_t header_bytes = 0;
  EXPECT_GT(file.size(), sizeof(header_bytes)) << path;
  std::memcpy(&header_bytes, file.data(), std::min(file.size(), sizeof(header_bytes)));
  return file.substr(std::min(file.size(), sizeof(header_bytes) + header_bytes));
}

// What two checkpoints of one state have in common: every byte of the data.
inline void expect_same_files(const std::string& one, const std::string& other, int world_size) {
  for (int rank = 0; rank < world_size; ++rank) {
    const std::string name = concat("/rank-0000", rank, ".safetensors");
    const std::string expected = data_of(one + name);
    EXPECT_GT(expected.size(), 1000U);
    EXPECT_TRUE(data_of(other + name) == expected) << other << name;
  }
}

// Six steps with a save after most of them, in the foreground and, while training goes on, in the background: the same
// bytes, and the same values in the end.
inline void expect_the_state_of_their_step(Scenario scenario, uint64_t seed) {
  std::vector<at::Tensor> expected{size_t(scenario.world_size)}, found = expected;
  const testing::TemporaryDirectory now, later;
  const auto run = [&](const testing::TemporaryDirectory& root, bool async, std::vector<at::Tensor>& values) {
    scenario.config.checkpoint.async = async;
    std::mutex mutex;
    testing::Random random(seed);
    const auto delay = [&] {
      std::unique_lock lock(mutex);
      const auto time = std::chrono::milliseconds(random() % 30);
      lock.unlock();
      if (async) std::this_thread::sleep_for(time);  // a busy machine
    };
    const auto train = [&](SavingRank& rank) {
      for (int step = 0; step < 6; ++step) {
        rank.train_step(scenario, step);
        if (step % 3 != 2) rank.engine->save_checkpoint(root.path(), concat("s", step), step);
      }
      values[size_t(rank.rank)] = rank.values();
    };
    EXPECT_THAT(run_saving(scenario, train, 0, {}, late(delay)), ::testing::Each("")) << scenario.text();
  };
  run(now, false, expected);
  run(later, true, found);
  if (::testing::Test::HasFailure()) return;
  for (size_t rank = 0; rank < found.size(); ++rank) EXPECT_TRUE(found[rank].equal(expected[rank])) << scenario.text();
  for (const int step : {0, 1, 3, 4})
    expect_same_files(now / concat("s", step), later / concat("s", step), scenario.world_size);
}

// save_checkpoint returns before anything is read. Evaluation, forward and backward go on; the update waits.
inline void expect_that_the_update_alone_waits(const Scenario& scenario) {
  const testing::TemporaryDirectory root;
  Gate gate(/*is_open=*/false);
  std::atomic<int> at_the_update = 0;
  std::thread opens;
  const auto errors = run_saving(
      scenario,
      [&](SavingRank& rank) {
        rank.train_step(scenario, 0);
        rank.engine->save_checkpoint(root.path(), "a", 1);
        EXPECT_FALSE(std::filesystem::exists(root / "a"));
        rank.values();
        rank.engine->begin_forward(/*training=*/true);
        rank.engine->backward(loss_of(*rank.model, scenario, rank.rank, 1, 0, rank.engine.get()));
        EXPECT_FALSE(gate.is_open()) << scenario.text();
        if (++at_the_update == scenario.world_size) opens = gate.open_later(std::chrono::milliseconds(100));
        rank.engine->step();
        EXPECT_TRUE(gate.is_open()) << scenario.text();
      },
      0, {}, gate.decorate());
  gate.open();
  if (opens.joinable()) opens.join();
  EXPECT_THAT(errors, ::testing::Each("")) << scenario.text();
  EXPECT_TRUE(std::filesystem::exists(root / "a"));
}

// Reading, evaluation and another save need no update; a load takes the place of all states; the engine may go.
inline void expect_saves_and_loads_after_one_another(const Scenario& scenario) {
  const testing::TemporaryDirectory root;
  const auto errors = run_saving(scenario, [&](SavingRank& rank) {
    rank.train_step(scenario, 0);
    rank.engine->save_checkpoint(root.path(), "a", 1);
    const at::Tensor first = rank.values();
    rank.engine->save_checkpoint(root.path(), "b", 1);
    rank.train_step(scenario, 1);
    rank.engine->save_checkpoint(root.path(), "c", 2);
    EXPECT_TRUE(rank.engine->load_checkpoint(root.path(), {.tag = "b"}));
    EXPECT_TRUE(rank.values().equal(first)) << scenario.text();
    rank.engine->save_checkpoint(root.path(), "d", 1);
    rank.train_step(scenario, 1);
    rank.engine->save_checkpoint(root.path(), "e", 2);
    rank.engine.reset();
    EXPECT_TRUE(std::filesystem::exists(root / "e"));
  });
  EXPECT_THAT(errors, ::testing::Each("")) << scenario.text();
  if (::testing::Test::HasFailure()) return;
  expect_same_files(root / "a", root / "b", scenario.world_size);
  expect_same_files(root / "b", root / "d", scenario.world_size);
  expect_same_files(root / "c", root / "e", scenario.world_size);
}

// `write`, on every rank, comes right after a save whose reads are late: it waits for them, and the checkpoint has what
// was there before.
inline void expect_that_a_writer_waits(Scenario scenario, const std::function<void(SavingRank&)>& write) {
  const testing::TemporaryDirectory now, later;
  for (const bool async : {false, true}) {
    scenario.config.checkpoint.async = async;
    Gate gate(!async);
    std::thread opens;
    const auto errors = run_saving(
        scenario,
        [&](SavingRank& rank) {
          rank.train_step(scenario, 0);
          rank.engine->save_checkpoint((async ? later : now).path(), "a", 1);
          if (rank.rank == 0) opens = gate.open_later();
          write(rank);
          EXPECT_TRUE(gate.is_open()) << scenario.text();
          rank.train_step(scenario, 1);
        },
        0, {}, gate.decorate());
    gate.open();
    if (opens.joinable()) opens.join();
    ASSERT_THAT(errors, ::testing::Each("")) << scenario.text();
  }
  expect_same_files(now / "a", later / "a", scenario.world_size);
}

// What was written to whole parameters, around torch's counters of versions, before the save counts; what is written
// after it does not.
inline void expect_what_users_wrote_before_it_alone(Scenario scenario) {
  const testing::TemporaryDirectory now, later;
  for (const bool async : {false, true}) {
    scenario.config.checkpoint.async = async;
    Gate gate(!async);
    const auto errors = run_saving(
        scenario,
        [&](SavingRank& rank) {
          const auto write = [&](double factor) {
            for (const auto& unit : rank.model->params())
              for (const at::Tensor& param : unit) param.data().mul_(factor);
          };
          rank.train_step(scenario, 0);
          rank.train_step(scenario, 1);
          write(1.5);
          rank.engine->save_checkpoint((async ? later : now).path(), "a", 2);
          write(3);
          gate.open();
          rank.train_step(scenario, 2);
        },
        0, {}, gate.decorate());
    ASSERT_THAT(errors, ::testing::Each("")) << scenario.text();
  }
  expect_same_files(now / "a", later / "a", scenario.world_size);
}

// What saves in the background have copied at most, as planned.
inline int64_t copied_by_saves(const Scenario& scenario) {
  const testing::TemporaryDirectory root;
  int64_t copied = 0;
  const auto errors = run_saving(scenario, [&](SavingRank& rank) {
    rank.train_step(scenario, 0);
    rank.engine->save_checkpoint(root.path(), "a", 1);
    rank.train_step(scenario, 1);
    rank.engine->wait_for_checkpoint();
    for (const MemoryLine& line : rank.engine->memory()) {
      if (line.category != "checkpoint staging") continue;
      EXPECT_EQ(line.planned, line.measured_peak) << scenario.text();
      if (rank.rank == 0) copied += line.measured_peak;
    }
  });
  EXPECT_THAT(errors, ::testing::Each("")) << scenario.text();
  return copied;
}

}  // namespace zeroshard::test
