#pragma once
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <vector>

#include "comm_c10d/make_comm.h"
#include "support/accelerator/device.h"
#include "support/accelerator/group.h"
#include "support/accelerator/kernels.h"
#include "support/accelerator/memory.h"
#include "world/support.h"

// Engines whose ranks are threads with a simulated device each.
namespace zeroshard::accelerator {

inline std::vector<std::unique_ptr<Comm>> make_device_world(int world_size) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::vector<std::unique_ptr<Comm>> comms(static_cast<size_t>(world_size));
  const auto errors = testing::run_threads(world_size, [&](int rank) {
    set_current_device(rank);
    comms[static_cast<size_t>(rank)] =
        make_comm(world_size == 1 ? nullptr : make_group(store, rank, world_size, rank), device(rank));
  });
  for (const std::string& error : errors) TORCH_CHECK(error.empty(), error);
  return comms;
}

inline test::Scenario on_devices(test::Scenario scenario) {
  scenario.device_of = [](int rank) {
    set_current_device(rank);
    return device(rank);
  };
  scenario.make_world = make_device_world;
  return scenario;
}

inline void begin_on_devices(Schedule schedule, uint64_t seed) {
  start();
  use_own_kernels(true);
  Streams::get().set_schedule(schedule, seed);
  Streams::get().races().forget();
}

// What the rank's thread gives to its device from now on goes to `stream`, after what it gave before.
inline void move_to(c10::Stream stream) {
  const c10::impl::VirtualGuardImpl impl(stream.device_type());
  c10::Event event(stream.device_type());
  event.record(impl.getStream(stream.device()));
  event.block(stream);
  impl.exchangeStream(stream);
}

// One step on streams of the user's: each of forward, backward and step on another.
inline void step_on_own_streams(test::Rank& rank, int step) {
  const c10::impl::VirtualGuardImpl impl(c10::kPrivateUse1);
  const c10::Device device = rank.scenario.device_of(rank.gather.rank());
  const c10::Stream before = impl.getStream(device);
  move_to(impl.getNewStream(device));
  rank.engine->begin_forward(/*training=*/true);
  const at::Tensor loss =
      test::loss_of(rank.model, rank.scenario, rank.gather.rank(), step, /*micro_batch=*/0, rank.engine.get());
  move_to(impl.getNewStream(device));
  rank.engine->backward(loss);
  move_to(impl.getNewStream(device));
  rank.result.steps.push_back(rank.engine->step());
  move_to(before);
}

using BeforeStep = std::function<void(test::Rank& rank, int step)>;

// Trains a rank. The batches are there before, so that the host waits for nothing but what the engine waits for, and
// `before_step`, which may be null.
inline void train_without_waits(test::Rank& rank, const BeforeStep& before_step) {
  at::set_num_threads(1);
  rank.make_engine();
  std::vector<test::Batch> batches;
  for (int step = 0; step < rank.scenario.steps; ++step)
    batches.push_back(test::batch_of(rank.scenario, rank.gather.rank(), step, /*micro_batch=*/0));
  for (int step = 0; step < rank.scenario.steps; ++step) {
    if (before_step) before_step(rank, step);
    rank.engine->begin_forward(/*training=*/true);
    rank.engine->backward(
        test::loss_of(rank.model, rank.scenario, rank.gather.rank(), step, batches[size_t(step)], rank.engine.get()));
    rank.engine->step();
  }
  rank.finish();
}

inline void end_on_devices() {
  for (int i = 0; i < kDevices; ++i) Streams::get().wait_for_device(i);
  Streams::get().set_schedule(Schedule::kEager);
}

}  // namespace zeroshard::accelerator
