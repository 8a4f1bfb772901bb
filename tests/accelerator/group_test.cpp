// Groups of simulated devices, as those of NCCL: what happens where ranks differ, or are missing.
#include <gmock/gmock.h>

#include <future>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "comm_c10d/make_comm.h"
#include "engine/consensus.h"
#include "support/accelerator/device.h"
#include "support/accelerator/group.h"
#include "support/accelerator/memory.h"
#include "support/comm_world.h"
#include "zeroshard/error.h"

namespace zeroshard::accelerator {
namespace {

// Two ranks of simulated devices. Returns what each threw.
std::vector<std::string> run_two(int64_t timeout_ms, const std::function<void(Comm&)>& body) {
  start();
  Streams::get().set_schedule(Schedule::kEager);
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::vector<std::unique_ptr<Comm>> comms(2);
  return testing::run_threads(2, [&](int rank) {
    set_current_device(rank);
    CommOptions options;
    options.timeout_ms = timeout_ms;
    auto& comm = comms[size_t(rank)];
    comm = make_comm(make_group(store, rank, 2, rank), device(rank), options);
    body(*comm);
  });
}

TEST(DeviceGroup, RanksThatCalledOtherCollectivesOfOneSizeNameThem) {
  const auto errors = run_two(60'000, [](Comm& comm) {
    const at::Tensor data = at::ones({8}, at::TensorOptions().device(device(comm.rank())));
    const Span all{data.data_ptr(), 8, DType::kFloat32};
    const ConstSpan mine{data.data_ptr<float>() + 4 * comm.rank(), 4, DType::kFloat32};
    comm.all_gather(all, mine, "same")->wait();
    comm.all_gather(all, mine, comm.rank() == 0 ? "left" : "right")->wait();
    Comm* const comms[] = {&comm};
    compare_histories(comms, "end of backward");
  });
  for (const std::string& error : errors) {
    EXPECT_THAT(error, ::testing::HasSubstr("ranks disagree: in collective #2 rank 0 called all_gather"));
    EXPECT_THAT(error, ::testing::HasSubstr("left"));
    EXPECT_THAT(error, ::testing::HasSubstr("right"));
  }
}

// Each rank counts its own tries; one has failed alone before.
TEST(DeviceGroup, RanksThatHaveTriedUnequallyOftenFindWhereTheyDiffer) {
  start();
  Streams::get().set_schedule(Schedule::kEager);
  const auto store = c10::make_intrusive<c10d::HashStore>();
  store->add("zeroshard/divergence/1", 1);
  std::vector<std::unique_ptr<Comm>> comms(2);
  const auto errors = testing::run_threads(2, [&](int rank) {
    set_current_device(rank);
    comms[size_t(rank)] = make_comm(make_group(store, rank, 2, rank), device(rank));
    const at::Tensor data = at::ones({8}, at::TensorOptions().device(device(rank)));
    comms[size_t(rank)]->broadcast({data.data_ptr(), 8, DType::kFloat32}, 0, rank == 0 ? "left" : "right")->wait();
    Comm* const compared[] = {comms[size_t(rank)].get()};
    compare_histories(compared, "end of backward");
  });
  for (const std::string& error : errors)
    EXPECT_THAT(error, ::testing::HasSubstr("ranks disagree: in collective #1 rank 0 called broadcast"));
}

TEST(DeviceGroup, EqualHistoriesPass) {
  const auto errors = run_two(60'000, [](Comm& comm) {
    const at::Tensor data = at::ones({8}, at::TensorOptions().device(device(comm.rank())));
    comm.broadcast({data.data_ptr(), 8, DType::kFloat32}, 0, "same")->wait();
    Comm* const comms[] = {&comm};
    compare_histories(comms, "end of backward");
    comm.await_device("step");
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
}

TEST(DeviceGroup, ADeviceThatWaitsForAMissingRankIsAnError) {
  std::promise<void> over;
  const std::shared_future<void> is_over = over.get_future().share();
  const auto errors = run_two(1500, [&](Comm& comm) {
    const at::Tensor data = at::ones({8}, at::TensorOptions().device(device(comm.rank())));
    if (comm.rank() == 0) {
      const auto work = comm.broadcast({data.data_ptr(), 8, DType::kFloat32}, 1, "embedding");
      work->wait();
      try {
        comm.await_device("gradients of the step");
      } catch (const CommError&) {
        over.set_value();
        throw;
      }
      over.set_value();
    } else {
      is_over.wait();  // and then comes after all, so that the device's stream ends
      comm.broadcast({data.data_ptr(), 8, DType::kFloat32}, 1, "embedding")->wait();
    }
  });
  EXPECT_THAT(errors[0], ::testing::HasSubstr("gradients of the step"));
  EXPECT_THAT(errors[0], ::testing::HasSubstr("a rank is missing"));
  EXPECT_EQ(errors[1], "");
}

// Gathers and reductions of a rank have a communicator each, which break together, with those beside them.
TEST(DeviceGroup, AFailureOnTheHostEndsBothGroupsOfTheDevice) {
  start();
  Streams::get().set_schedule(Schedule::kEager);
  const auto first = c10::make_intrusive<c10d::HashStore>(), second = c10::make_intrusive<c10d::HashStore>();
  const int before = aborted_groups(0);
  std::vector<std::unique_ptr<Comm>> gather(2), reduce(2);
  const auto errors = testing::run_threads(2, [&](int rank) {
    set_current_device(rank);
    CommOptions options;
    options.failure = std::make_shared<SharedFailure>();
    gather[size_t(rank)] = make_comm(make_group(first, rank, 2, rank), device(rank), options);
    reduce[size_t(rank)] = make_comm(make_group(second, rank, 2, rank), device(rank), options);
    if (rank == 1) return gather[1]->host().abort("disk full");
    EXPECT_THROW(gather[0]->host().barrier("unit of backward"), CommError);
    reduce[0]->barrier("later");
  });
  EXPECT_THAT(errors[0], ::testing::HasSubstr("disk full"));
  EXPECT_EQ(errors[1], "");
  EXPECT_EQ(aborted_groups(0), before + 2);
}

// Each has a collective under way that the other rank does not call.
TEST(DeviceGroup, BothGroupsOfADeviceEndWhileBothAreBusy) {
  start();
  Streams::get().set_schedule(Schedule::kEager);
  const auto first = c10::make_intrusive<c10d::HashStore>(), second = c10::make_intrusive<c10d::HashStore>();
  std::vector<std::unique_ptr<Comm>> gather(2), reduce(2);
  const auto errors = testing::run_threads(2, [&](int rank) {
    set_current_device(rank);
    CommOptions options;
    options.failure = std::make_shared<SharedFailure>();
    gather[size_t(rank)] = make_comm(make_group(first, rank, 2, rank), device(rank), options);
    reduce[size_t(rank)] = make_comm(make_group(second, rank, 2, rank), device(rank), options);
    if (rank == 1) return;
    const at::Tensor data = at::ones({8}, at::TensorOptions().device(device(rank)));
    std::vector<std::unique_ptr<Work>> works;
    for (Comm* const comm : {gather[0].get(), reduce[0].get()})
      works.push_back(comm->broadcast({data.data_ptr(), 8, DType::kFloat32}, 1, "embedding"));
    reduce[0]->abort("disk full");
    Streams::get().wait_for_device(0);
    gather[0]->check();
  });
  EXPECT_THAT(errors[0], ::testing::HasSubstr("disk full"));
  EXPECT_EQ(errors[1], "");
}

TEST(DeviceGroup, ARankThatAwaitsItsDeviceHearsOfAnAbort) {
  start();
  Streams::get().set_schedule(Schedule::kEager);
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::vector<std::unique_ptr<Comm>> comms(2);
  std::promise<void> over;
  const std::shared_future<void> is_over = over.get_future().share();
  const auto errors = testing::run_threads(2, [&](int rank) {
    set_current_device(rank);
    const auto group = make_group(store, rank, 2, rank);
    auto& comm = comms[size_t(rank)] = make_comm(group, device(rank));
    at::Tensor data = at::ones({8}, at::TensorOptions().dtype(at::kByte).device(device(rank)));
    if (rank == 0) {
      const auto work = comm->broadcast({data.data_ptr(), 8, DType::kOther1}, 1, "embedding");
      work->wait();
      try {
        comm->await_device("gradients of the step");
      } catch (const CommError&) {
        over.set_value();
        throw;
      }
      over.set_value();
    } else {
      comm->abort("disk full");
      is_over.wait();  // and then comes after all, so that the device's stream ends
      std::vector<at::Tensor> tensors{data};
      c10d::BroadcastOptions options;
      options.rootRank = 1;
      group->broadcast(tensors, options)->wait();
    }
  });
  EXPECT_THAT(errors[0], ::testing::HasSubstr("disk full"));
  EXPECT_EQ(errors[1], "");
}

}  // namespace
}  // namespace zeroshard::accelerator
