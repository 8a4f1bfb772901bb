// A World that cannot be made, and is tried again in the same process.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <future>
#include <string>
#include <thread>

#include "comm_c10d/gloo_group.h"
#include "launch/port.h"
#include "zeroshard/error.h"
#include "zeroshard/meeting.h"
#include "zeroshard/world.h"

namespace zeroshard {
namespace {

constexpr int kTimeoutMs = 60'000;

class Variables {
 public:
  explicit Variables(const std::string& port) {
    for (const auto& [name, value] : {std::pair<const char*, std::string>{"RANK", "0"},
                                      {"LOCAL_RANK", "0"},
                                      {"WORLD_SIZE", "3"},
                                      {"LOCAL_WORLD_SIZE", "3"},
                                      {"MASTER_ADDR", "127.0.0.1"},
                                      {"MASTER_PORT", port}})
      ::setenv(name, value.c_str(), 1);
  }
  ~Variables() {
    for (const char* name : {"RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"})
      ::unsetenv(name);
  }
  Variables(const Variables&) = delete;
};

// Rank 1 comes, and leaves when rank 0 has come, too.
void come_and_leave(const c10::intrusive_ptr<c10d::Store>& store, const std::string& reason) {
  const NoteBoard board{.write = [store](const auto& key, const auto& note) { store->set(key, note); },
                        .count = [store](const auto& key) { return store->add(key, 1); },
                        .has = [store](const auto& key) { return store->check({key}); },
                        .read = [store](const auto& key) { return store->get_to_str(key); }};
  Meeting meeting(board, 1, 3, kTimeoutMs);
  const std::string card = "zeroshard/meeting/0/" + std::to_string(meeting.number()) + "/card/0";
  while (!store->check({card})) std::this_thread::yield();
  meeting.leave(reason);
}

TEST(WorldAgain, FindsTheRanksOfTheFirstTryAtTheStoreThatItServes) {
  const PortReservation port(0);
  const Variables variables(std::to_string(port.port()));
  Config config;
  config.world_size = 3;
  config.timeout_ms = kTimeoutMs;
  c10::intrusive_ptr<c10d::Store> store;
  for (const char* reason : {"out of memory", "out of patience"}) {
    auto other = std::async(std::launch::async, [&] {
      if (!store) store = make_env_store(1, 3, kTimeoutMs);
      come_and_leave(store, reason);
    });
    try {
      const World world(config);
      ADD_FAILURE() << "made without rank 2";
    } catch (const CommError& error) {
      EXPECT_THAT(error.what(), ::testing::HasSubstr("rank 0: rank 1 left before all ranks were connected (" +
                                                     std::string(reason) + ")"));
    }
    other.get();
  }
}

}  // namespace
}  // namespace zeroshard
