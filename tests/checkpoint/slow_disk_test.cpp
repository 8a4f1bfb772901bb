#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <latch>
#include <mutex>
#include <thread>

#include "base/format.h"
#include "checkpoint/async_saver.h"
#include "checkpoint/versions.h"
#include "support/around_io.h"
#include "support/faulty_io.h"
#include "support/model_disk.h"
#include "zeroshard/error.h"

namespace zeroshard {
namespace {

using testing::AroundIo;
using ::testing::Each;
using testing::kVersionsRoot;
using testing::load_version;
using testing::ModelDisk;
using testing::Version;
using testing::version_request;
using testing::VersionShare;

void copy_to_disk(void* to, const void* from, int64_t bytes) {
  std::memcpy(to, from, size_t(bytes));
}

Version version(int number) {
  return {.number = number, .tag = concat("v", number), .step = number};
}

// A disk that has stopped, until it goes on.
class Gate {
 public:
  void open() {
    {
      const std::lock_guard lock(mutex_);
      open_ = true;
    }
    changed_.notify_all();
  }
  bool is_open() const {
    const std::lock_guard lock(mutex_);
    return open_;
  }
  void pass() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return open_; });
  }

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool open_ = false;
};

// Opens a gate some time after both ranks are about to wait: later makes the test no stricter, earlier no wrong.
void open_later(Gate& gate, std::latch& waiting) {
  waiting.wait();
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  gate.open();
}

// The disk of rank 1 hangs: training goes on, the next save waits for the one before, and neither sees the other's
// values. There is memory for one copy.
TEST(SlowDisk, TheNextSaveWaitsForTheOneBefore) {
  ModelDisk disk;
  Gate gate;
  std::latch waiting(2);
  AroundIo slow(disk, [&](IoOp op, const auto& call) {
    if (op == IoOp::kSync) gate.pass();
    return call();
  });
  std::thread opener([&] { open_later(gate, waiting); });
  const auto errors = testing::run_local_world(2, [&](Comm& comm) {
    Ledger ledger;
    AsyncSaver saver(comm, comm.rank() == 1 ? static_cast<Io&>(slow) : disk, ledger);
    VersionShare share(1, comm.rank(), 2);
    int64_t bytes = 0;
    for (const StateSlice& slice : share.slices) bytes += slice.bytes();
    saver.start(version_request(version(1), share), copy_to_disk);
    EXPECT_TRUE(saver.busy());
    EXPECT_FALSE(gate.is_open());
    share.overwrite();
    waiting.count_down();
    VersionShare next(2, comm.rank(), 2);
    saver.start(version_request(version(2), next), [&](void* to, const void* from, int64_t size) {
      EXPECT_TRUE(gate.is_open());
      EXPECT_EQ(load_version(disk, "v1"), "1");
      copy_to_disk(to, from, size);
    });
    next.overwrite();
    saver.wait();
    EXPECT_EQ(ledger.peak().at(Category::kCheckpointStaging, Tier::kHost), bytes);
  });
  opener.join();
  EXPECT_THAT(errors, Each(""));
  EXPECT_EQ(load_version(disk, "v1"), "1");
  EXPECT_EQ(load_version(disk), "2");
}

TEST(SlowDisk, TheEndWaitsForASaveUnderWay) {
  ModelDisk disk;
  Gate gate;
  std::latch waiting(2);
  AroundIo slow(disk, [&](IoOp op, const auto& call) {
    if (op == IoOp::kWrite) gate.pass();
    return call();
  });
  std::thread opener([&] { open_later(gate, waiting); });
  const auto errors = testing::run_local_world(2, [&](Comm& comm) {
    {
      Ledger ledger;
      AsyncSaver saver(comm, comm.rank() == 0 ? static_cast<Io&>(slow) : disk, ledger);
      VersionShare share(1, comm.rank(), 2);
      saver.start(version_request(version(1), share), copy_to_disk);
      share.overwrite();
      waiting.count_down();
    }
    EXPECT_TRUE(gate.is_open());
    EXPECT_EQ(load_version(disk, "v1"), "1");
  });
  opener.join();
  EXPECT_THAT(errors, Each(""));
}

// Saves that come faster than the disks write, the third of which fails: every other one is there with its own values,
// never two at a time, and the error comes once, on all ranks, with the fourth.
TEST(SlowDisk, NothingIsLostWhenSavesComeFasterThanTheyAreWritten) {
  ModelDisk disk;
  std::atomic<int> at_once = 0;
  const auto sleep = [&](IoOp op, const auto& call) {
    if (op == IoOp::kWrite || op == IoOp::kSync || op == IoOp::kRename)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));  // as a slow disk does
    const auto result = call();
    if (op == IoOp::kMkdir) {
      int temporary = 0;
      const auto root = Directory::open_if_there(disk, kVersionsRoot);
      if (root)
        for (const std::string& name : root->list()) temporary += name.starts_with(".tmp-v");
      at_once = std::max(at_once.load(), temporary);
    }
    return result;
  };
  AroundIo slow(disk, sleep);
  FaultyIo failing(slow);
  const auto errors = testing::run_local_world(3, [&](Comm& comm) {
    Ledger ledger;
    AsyncSaver saver(comm, comm.rank() == 1 ? static_cast<Io&>(failing) : slow, ledger);
    const auto start = [&](int number) {
      VersionShare share(number, comm.rank(), 3);
      saver.prepare(version_request(version(number), share));
      if (comm.rank() == 1 && number == 3) failing.fail({.op = IoOp::kSync, .nth = 1, .error = EIO});
      saver.start(version_request(version(number), share), copy_to_disk);
      share.overwrite();
    };
    for (const int number : {1, 2, 3}) start(number);
    try {
      start(4);
      ADD_FAILURE() << "the failure of the third save was not told";
    } catch (const IoError& error) {
      EXPECT_THAT(error.what(), ::testing::StartsWith("rank 1: ")) << comm.rank();
    }
    for (const int number : {4, 5}) start(number);
    saver.wait();
  });
  EXPECT_THAT(errors, Each(""));
  EXPECT_EQ(at_once, 1);
  for (const int number : {1, 2, 4, 5}) EXPECT_EQ(load_version(disk, version(number).tag), std::to_string(number));
  EXPECT_EQ(disk.node_of(kVersionsRoot + "/v3"), -ENOENT);
  EXPECT_EQ(load_version(disk), "5");
}

}  // namespace
}  // namespace zeroshard
