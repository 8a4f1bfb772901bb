// fork() comes before threads. So this file comes first in the alphabet, and so in the program.
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>
#include <torch/csrc/distributed/c10d/FileStore.hpp>

#include <filesystem>
#include <string>
#include <vector>

#include "comm_c10d/gloo_group.h"
#include "comm_c10d/make_tiers.h"
#include "comm_c10d/tiered_comm.h"
#include "support/comm_world.h"
#include "support/expect.h"

namespace zeroshard {
namespace {

using testing::Clock, testing::expect_contains, testing::seconds_since;

struct Deaths {
  std::vector<std::string> errors;
  pid_t victim = 0;
  double seconds = 0;
};

// Processes of two "hosts", of which rank `victim` gets a signal.
Deaths strike_host(int victim, int signal) {
  char name[] = "/tmp/zeroshard-store-XXXXXX";
  ::close(::mkstemp(name));
  CommOptions options;
  options.stall_timeout_ms = 700;
  options.timeout_ms = 6'000;  // ends the ranks of the other host, which only see that a peer is silent
  testing::ForkedWorld world(4, [&](int rank, Bootstrap& bootstrap) {
    const auto store = c10::make_intrusive<c10d::FileStore>(name, 4);
    const auto group = make_gloo_group(store, rank, 4);
    const PeerWatch nobody(std::vector<ProcessId>(4), 60'000);
    TieredComm comm(make_tiers(bootstrap, 2, store, "hosts", nobody, options), group, nobody, options);
    const auto gather = [&](const std::string& tag) {
      std::vector<float> full(4000), shard(1000);
      comm.all_gather({full.data(), 4000, DType::kFloat32}, {shard.data(), 1000, DType::kFloat32}, tag)->wait();
    };
    gather("early");
    if (rank == victim) ::raise(signal);
    gather("model.layers.3");
  });
  const auto start = Clock::now();
  Deaths deaths;
  deaths.victim = world.pid(victim);
  for (int rank = 0; rank < 4; ++rank) deaths.errors.push_back(rank == victim ? "" : world.join(rank));
  deaths.seconds = seconds_since(start);
  std::filesystem::remove(name);
  return deaths;
}

// The victims have a lower neighbour on their host.
void expect_death_is_named(int victim) {
  const int neighbour = victim - 1;
  const Deaths deaths = strike_host(victim, SIGKILL);
  EXPECT_LT(deaths.seconds, 15);
  expect_contains(deaths.errors[size_t(neighbour)],
                  {concat("rank ", victim, " (pid ", deaths.victim, ") died"), "all_gather('model.layers.3'"});
  for (int rank = 0; rank < 4; ++rank)
    EXPECT_EQ(deaths.errors[size_t(rank)].empty(), rank == victim) << "rank " << rank;
}

void expect_stop_is_named(int victim) {
  const int neighbour = victim - 1;
  const Deaths deaths = strike_host(victim, SIGSTOP);
  EXPECT_LT(deaths.seconds, 15);
  expect_contains(deaths.errors[size_t(neighbour)],
                  {concat("rank ", victim, " (pid ", deaths.victim, ") has been stopped"), "'model.layers.3'"});
}

TEST(TieredProcesses, DeadPeersOfEachHostAreNamedByTheirNumbers) {
  expect_death_is_named(1);
  expect_death_is_named(3);
}

TEST(TieredProcesses, StoppedPeersOfEachHostAreNamedByTheirNumbers) {
  expect_stop_is_named(1);
  expect_stop_is_named(3);
}

}  // namespace
}  // namespace zeroshard
