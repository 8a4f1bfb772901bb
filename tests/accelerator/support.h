#pragma once
#include <gtest/gtest.h>

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

inline void end_on_devices() {
  for (int i = 0; i < kDevices; ++i) Streams::get().wait_for_device(i);
  Streams::get().set_schedule(Schedule::kEager);
}

}  // namespace zeroshard::accelerator
