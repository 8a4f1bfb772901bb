#include "support/comm_conformance.h"

#include <gtest/gtest.h>

#include "support/comm_world.h"
#include "support/test_comms.h"

namespace zeroshard {
namespace {

#if defined(__SANITIZE_THREAD__)
constexpr bool kThreadSanitizer = true;
#else
constexpr bool kThreadSanitizer = false;
#endif

using testing::check_conformance;

void expect_no_errors(const std::vector<std::string>& errors) {
  for (size_t rank = 0; rank < errors.size(); ++rank) EXPECT_EQ(errors[rank], "") << "rank " << rank;
}

class Conformance : public ::testing::TestWithParam<int> {};

TEST_P(Conformance, LocalComm) {
  expect_no_errors(testing::run_local_world(GetParam(), [](Comm& comm) { check_conformance(comm); }));
}

TEST_P(Conformance, LocalCommWithDelays) {
  expect_no_errors(testing::run_local_world(GetParam(), [](Comm& comm) {
    DelayComm delayed(comm, 17, 300);
    testing::check_many_in_flight(delayed, true, 3);
    testing::check_barrier_protects_inputs(delayed, 4);
    testing::check_reductions(delayed, 100, true, 5, {});
  }));
}

TEST_P(Conformance, ShmCommAmongThreads) {
  if (kThreadSanitizer && GetParam() > 4) GTEST_SKIP() << "address space";
  CommOptions options;
  options.staging_bytes = 1 << 20;
  expect_no_errors(testing::run_shm_threads(
      GetParam(), [](Comm& comm) { check_conformance(comm); }, options));
}

TEST_P(Conformance, ShmCommAmongProcesses) {
  if (kThreadSanitizer) GTEST_SKIP() << "fork() among threads";
  expect_no_errors(testing::run_shm_processes(GetParam(), [](Comm& comm) {
    check_conformance(comm);
    DelayComm delayed(comm, 5, 300);
    testing::check_many_in_flight(delayed, true, 3);
  }));
}

INSTANTIATE_TEST_SUITE_P(Worlds, Conformance, ::testing::Values(1, 2, 3, 4, 7),
                         [](const auto& info) { return "of" + std::to_string(info.param); });

TEST(SingleComm, Conforms) {
  check_conformance(*make_single_comm());
}

TEST(ShmComm, StagingRingWrapsAround) {
  CommOptions options;
  options.staging_bytes = 10'000;
  expect_no_errors(testing::run_shm_threads(
      2,
      [](Comm& comm) {
        for (uint64_t i = 0; i < 200; ++i) {
          const int64_t numel = static_cast<int64_t>(1 + i * 37 % 1200);
          std::vector<float> shard = testing::input_of(comm.rank(), numel, i);
          std::vector<float> full(static_cast<size_t>(2 * numel));
          comm.all_gather({full.data(), 2 * numel, DType::kFloat32}, Span{shard.data(), numel, DType::kFloat32}, "s")
              ->wait();
          const std::vector<float> other = testing::input_of(1 - comm.rank(), numel, i);
          testing::require(std::equal(other.begin(), other.end(), full.begin() + (1 - comm.rank()) * numel), "round ",
                           i);
        }
      },
      options));
}

TEST(ShmComm, StagingRingTooSmallSaysSo) {
  CommOptions options;
  options.staging_bytes = 4096;
  const auto errors = testing::run_shm_threads(
      2,
      [](Comm& comm) {
        std::vector<float> shard(5000), full(10000);
        comm.all_gather({full.data(), 10000, DType::kFloat32}, Span{shard.data(), 5000, DType::kFloat32}, "s")->wait();
      },
      options);
  for (const std::string& error : errors) EXPECT_NE(error.find("allocate()"), std::string::npos) << error;
}

TEST(DirectComm, TooManyExchangesOutstandingNamesTheOldest) {
  const auto errors = testing::run_local_world(2, [](Comm& comm) {
    std::vector<float> data(2);
    std::vector<std::unique_ptr<Exchange>> exchanges;
    for (int i = 0; i < 200; ++i)
      exchanges.push_back(comm.exchange(Span{data.data(), 2, DType::kFloat32}, {}, concat("unit ", i)));
  });
  for (const std::string& error : errors) EXPECT_NE(error.find("'unit 0'"), std::string::npos) << error;
}

TEST(DirectComm, WrongSizesAreValueErrors) {
  const auto world = make_local_world(2);
  std::vector<float> data(8);
  const Span full{data.data(), 8, DType::kFloat32}, shard{data.data(), 3, DType::kFloat32};
  EXPECT_THROW(world[0]->all_gather(full, shard, "w"), ValueError);
  EXPECT_THROW(world[0]->reduce_scatter(shard, full, "w"), ValueError);
  EXPECT_THROW(world[0]->exchange(shard, {}, "w"), ValueError);
  EXPECT_THROW(world[0]->broadcast(full, 2, "w"), ValueError);
  EXPECT_THROW(world[0]->all_reduce({data.data(), 8, DType::kFloat16}, ReduceOp::kSum, "w"), ValueError);
  EXPECT_THROW(world[0]->all_gather(full, Span{nullptr, 4, DType::kFloat32}, "w"), ValueError);
  EXPECT_THROW(world[0]->allocate(-1, "w"), ValueError);
}

TEST(ShmComm, AllocationsAreZeroedAlignedAndReusable) {
  expect_no_errors(testing::run_shm_processes(2, [](Comm& comm) {
    for (int round = 0; round < 300; ++round) {
      const auto allocation = comm.allocate(1000, "a");
      auto* bytes = static_cast<unsigned char*>(allocation->data());
      testing::require(reinterpret_cast<uintptr_t>(bytes) % 64 == 0, "not aligned");
      for (int i = 0; i < 1000; ++i) testing::require(bytes[i] == 0, "not zeroed in round ", round);
      std::memset(bytes, 0xab, 1000);
    }
  }));
}

// The pieces of an exchange are the peers' own memory: a later change shows. (Not allowed before drain(); this is how
// the test tells zero copies from one.)
TEST(ShmComm, ExchangeOfAllocatedMemoryCopiesNothing) {
  for (const bool direct : {true, false})
    expect_no_errors(testing::run_shm_processes(2, [direct](Comm& comm) {
      testing::Buffer full(comm, 4, direct);
      full.fill({1, 1, 1, 1});
      const auto exchange = comm.exchange(full.span(), {}, "e");
      exchange->wait();
      comm.barrier("both have read pointers");
      full.fill({2, 2, 2, 2});
      comm.barrier("both have written");
      const auto* theirs = static_cast<const volatile float*>(exchange->pieces()[static_cast<size_t>(1 - comm.rank())]);
      testing::require(theirs[0] == (direct ? 2.0f : 1.0f), "peer's piece is ", theirs[0], " with direct ", direct);
      exchange->drain();
    }));
}

TEST(RecordingComm, CountsCallsAndBytes) {
  const auto single = make_single_comm();
  RecordingComm comm(*single);
  std::vector<float> data(10);
  const Span span{data.data(), 10, DType::kFloat32};
  comm.all_gather(span, span, "a")->wait();
  comm.all_gather(span, span, "b")->wait();
  comm.exchange(span, {}, "c")->drain();
  comm.barrier("d");
  EXPECT_EQ(comm.count(OpKind::kAllGather), 2);
  EXPECT_EQ(comm.bytes(OpKind::kAllGather), 80);
  EXPECT_EQ(comm.count(OpKind::kExchange), 1);
  EXPECT_EQ(comm.calls().size(), 4u);
  EXPECT_EQ(comm.calls()[1], (RecordingComm::Call{OpKind::kAllGather, 40, "b"}));
  comm.reset();
  EXPECT_EQ(comm.count(OpKind::kAllGather), 0);
}

}  // namespace
}  // namespace zeroshard
