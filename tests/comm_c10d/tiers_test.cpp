#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <chrono>
#include <future>
#include <mutex>
#include <string>
#include <vector>

#include "comm/local_comm.h"
#include "comm_c10d/gloo_group.h"
#include "comm_c10d/tiered_comm.h"
#include "support/comm_conformance.h"
#include "support/comm_world.h"
#include "support/expect.h"
#include "zeroshard/error.h"

namespace zeroshard {
namespace {

using testing::Clock, testing::expect_contains, testing::require, testing::seconds_since;

struct Grid {
  int hosts, ranks;  // ranks of each host
};

// Ranks that are threads; "hosts" are worlds of threads that share memory.
std::vector<std::string> run_hosts(Grid grid, const std::function<void(TieredComm&)>& body,
                                   const CommOptions& options = {}) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  const int world_size = grid.hosts * grid.ranks;
  std::vector<std::unique_ptr<Comm>> own;
  for (int host = 0; host < grid.hosts; ++host)
    for (auto& comm : make_local_world(grid.ranks)) own.push_back(std::move(comm));
  return testing::run_threads(world_size, [&](int rank) {
    const auto under = [&](const std::string& name) { return c10::make_intrusive<c10d::PrefixStore>(name, store); };
    const auto group = make_gloo_group(under("all"), rank, world_size);
    const auto link = make_gloo_group(under(concat("link", rank % grid.ranks)), rank / grid.ranks, grid.hosts);
    std::unique_ptr<DirectComm> host(dynamic_cast<DirectComm*>(own[static_cast<size_t>(rank)].release()));
    TieredComm comm(std::make_unique<Tiers>(std::move(host), link), group,
                    PeerWatch(std::vector<ProcessId>(size_t(world_size)), 60'000), options);
    body(comm);
  });
}

void expect_none(const std::vector<std::string>& errors) {
  for (size_t rank = 0; rank < errors.size(); ++rank) EXPECT_EQ(errors[rank], "") << "rank " << rank;
}

class TieredConformance : public ::testing::TestWithParam<Grid> {};

TEST_P(TieredConformance, Conforms) {
  const Grid grid = GetParam();
  const int sums = grid.ranks == 3 ? 0 : grid.hosts;  // three ranks of a host are no subtree
  expect_none(run_hosts(grid, [&](TieredComm& comm) {
    require(comm.transport() == "shm+gloo", comm.transport());
    testing::check_conformance(comm, {.rank_order = false, .hosts = sums});
  }));
}

INSTANTIATE_TEST_SUITE_P(Hosts, TieredConformance, ::testing::Values(Grid{2, 2}, Grid{3, 2}, Grid{2, 3}, Grid{2, 4}),
                         [](const auto& info) { return concat(info.param.hosts, "x", info.param.ranks); });

TEST(TieredComm, GathersMoreThanItsWindows) {
  constexpr int64_t kNumel = 1'500'001;  // several windows, and none of them whole
  expect_none(run_hosts({2, 2}, [](TieredComm& comm) {
    testing::Buffer full(comm, kNumel * comm.world_size(), false), shard(comm, kNumel, true);
    for (const uint64_t seed : {1u, 2u}) {
      shard.fill(testing::input_of(comm.rank(), kNumel, seed));
      comm.all_gather(full.span(), shard.span(), "large")->wait();
      for (int rank = 0; rank < comm.world_size(); ++rank)
        full.expect(testing::input_of(rank, kNumel, seed), rank * kNumel, concat("rank ", rank));
    }
    comm.broadcast(full.span(), 3, "large")->wait();
  }));
}

// Fewer ranks of a host than bytes of a sum: sums would be no smaller than the pieces.
TEST(TieredComm, SumsOnHostsOnlyWhereThatSendsLess) {
  for (const Grid grid : {Grid{2, 2}, Grid{2, 4}}) {
    expect_none(run_hosts(grid, [&](TieredComm& comm) {
      const int64_t numel = 8 * comm.world_size();
      std::vector<uint16_t> full(size_t(numel), 0x3f80), scratch(full);
      const auto exchange =
          comm.exchange({full.data(), numel, DType::kBFloat16}, {scratch.data(), numel, DType::kBFloat16}, "halves");
      exchange->wait();
      const bool sums = grid.ranks == 4;
      require(exchange->dtype() == (sums ? DType::kFloat32 : DType::kBFloat16), name_of(exchange->dtype()));
      require(exchange->pieces().size() == size_t(sums ? 2 : 4), exchange->pieces().size());
      if (sums) require(static_cast<const float*>(exchange->pieces()[1])[7] == 4, "a sum of ones");
      exchange->release();
      exchange->drain();
    }));
  }
}

// Bytes are codes, which nobody adds, even where one sum would be as small as eight of them.
TEST(TieredComm, CodesAreNotSummedOnHosts) {
  expect_none(run_hosts({2, 8}, [](TieredComm& comm) {
    const int64_t numel = 64 * comm.world_size();
    std::vector<uint8_t> full(size_t(numel), uint8_t(comm.rank())), scratch(full);
    const auto exchange =
        comm.exchange({full.data(), numel, DType::kOther1}, {scratch.data(), numel, DType::kOther1}, "codes");
    exchange->wait();
    require(exchange->pieces().size() == 16, exchange->pieces().size());
    for (size_t rank = 0; rank < 16; ++rank)
      require(static_cast<const uint8_t*>(exchange->pieces()[rank])[63] == rank, "the codes of rank ", rank);
    exchange->release();
    exchange->drain();
  }));
}

// A rank may wait for something else before it waits for a gather that others need now.
TEST(TieredComm, ARankNeedsNoOtherToWait) {
  std::promise<void> gathered;
  std::shared_future<void> is_gathered = gathered.get_future();
  expect_none(run_hosts({2, 2}, [&](TieredComm& comm) {
    std::vector<float> full(8), shard(2, float(comm.rank())), grads(8, 1), scratch(8);
    const auto work = comm.all_gather({full.data(), 8, DType::kFloat32}, {shard.data(), 2, DType::kFloat32}, "unit");
    const auto exchange =
        comm.exchange({grads.data(), 8, DType::kFloat32}, {scratch.data(), 8, DType::kFloat32}, "unit");
    if (comm.rank() == 0) {
      exchange->wait();
      work->wait();
      gathered.set_value();
    } else {
      require(is_gathered.wait_for(std::chrono::seconds(60)) == std::future_status::ready, "rank 0 waits for others");
      work->wait();
      exchange->wait();
    }
    exchange->drain();
  }));
}

TEST(TieredComm, AnAbortReachesTheRanksOfTheHost) {
  const auto start = Clock::now();
  CommOptions options;
  options.timeout_ms = 5'000;  // ends the ranks of the other host, as in any group of Gloo
  const auto errors = run_hosts(
      {2, 2},
      [](TieredComm& comm) {
        if (comm.rank() == 3) return comm.abort("planted");
        std::vector<float> full(8), shard(2);
        comm.all_gather({full.data(), 8, DType::kFloat32}, {shard.data(), 2, DType::kFloat32}, "unit")->wait();
      },
      options);
  EXPECT_LT(seconds_since(start), 30);
  EXPECT_EQ(errors[3], "");
  expect_contains(errors[2], {"planted"});
  for (const size_t rank : {0u, 1u, 2u}) EXPECT_NE(errors[rank], "") << rank;
}

TEST(TieredComm, ATimeOutNamesTheCollective) {
  CommOptions options;
  options.timeout_ms = 500;
  const auto errors = run_hosts(
      {2, 2},
      [](TieredComm& comm) {
        std::vector<float> full(8), shard(2);
        if (comm.rank() == 1) std::this_thread::sleep_for(std::chrono::seconds(3));
        comm.all_gather({full.data(), 8, DType::kFloat32}, {shard.data(), 2, DType::kFloat32}, "unit")->wait();
      },
      options);
  for (const size_t rank : {0u, 2u}) expect_contains(errors[rank], {"rank " + std::to_string(rank), "'unit'"});
}

}  // namespace
}  // namespace zeroshard
