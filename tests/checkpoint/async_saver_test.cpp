#include "checkpoint/async_saver.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <latch>
#include <stdexcept>
#include <thread>

#include "base/format.h"
#include "checkpoint/calls_within.h"
#include "checkpoint/versions.h"
#include "comm/local_comm.h"
#include "file/support.h"
#include "support/release.h"
#include "zeroshard/error.h"

namespace zeroshard {
namespace {

using ::testing::HasSubstr;
using testing::TemporaryDirectory;
using ::testing::ThrowsMessage;

SaveRequest request_of(const std::string& root, std::vector<float>& values) {
  SaveRequest request;
  request.root = root;
  request.tag = std::string("a");
  const auto numel = int64_t(values.size());
  request.slices.push_back({.name = "x",
                            .kind = "weight",
                            .dtype = "F32",
                            .aliases = {},
                            .shape = {numel},
                            .elements = {0, numel},
                            .data = host_data(values.data())});
  return request;
}

void copy(void* to, const void* from, int64_t bytes) {
  std::memcpy(to, from, size_t(bytes));
}

// The thread is not in the child, and the memory is not the child's to wait for.
TEST(AsyncSaver, AForkedChildLeavesItAlone) {
  const TemporaryDirectory root;
  const auto comm = make_single_comm();
  Ledger ledger;
  auto saver = std::make_unique<AsyncSaver>(*comm, posix_io(), ledger);
  std::vector<float> values(1000, 1);
  saver->start(request_of(root.path(), values), copy);
  saver->wait();
  saver->start(request_of(root.path(), values), copy);  // under way, or not, when the child begins
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(5);
    saver.reset();
    ::_exit(7);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 7) << status;
  saver->wait();
  EXPECT_EQ(testing::contents_of(root / "latest"), "a");
}

int64_t bytes_written(const FaultyIo& io) {
  int64_t bytes = 0;
  for (const IoCall& call : io.log())
    if (call.op == IoOp::kWrite) bytes += std::max<int64_t>(call.result, 0);
  return bytes;
}

// The second of two slices is not copied before the file of the first has been written to.
TEST(AsyncSaver, WritesWhileItCopies) {
  const TemporaryDirectory root;
  FaultyIo io(posix_io());
  const auto comm = make_single_comm();
  Ledger ledger;
  AsyncSaver saver(*comm, io, ledger);
  std::vector<float> first(size_t{4} << 20, 1), second(1000, 2);
  SaveRequest request = request_of(root.path(), first);
  request.slices.push_back(request_of(root.path(), second).slices.front());
  request.slices.back().name = "y";
  int copies = 0;
  saver.start(request, [&](void* to, const void* from, int64_t bytes) {
    if (++copies == 2) {
      const auto half = int64_t(first.size() * sizeof(float) / 2);  // more than the header
      EXPECT_TRUE(testing::holds_within(std::chrono::seconds(10), [&] { return bytes_written(io) >= half; }));
    }
    std::memcpy(to, from, size_t(bytes));
  });
  EXPECT_EQ(copies, 2);
  saver.wait();
}

// More than one call of Copy takes: the second has the bytes after those of the first, and nothing is committed before.
TEST(AsyncSaver, AnUncutStretchIsCopiedPieceByPiece) {
  const TemporaryDirectory root;
  FaultyIo io(posix_io());
  const auto comm = make_single_comm();
  Ledger ledger;
  AsyncSaver saver(*comm, io, ledger);
  std::vector<float> values((size_t{64} << 18) + 3 * 1024 + 1);
  for (size_t i = 0; i < values.size(); ++i) values[i] = float(i % 1'000'003);
  int copies = 0;
  saver.start(request_of(root.path(), values), [&](void* to, const void* from, int64_t bytes) {
    if (++copies == 2) {
      EXPECT_FALSE(testing::calls_within(std::chrono::milliseconds(500), io, IoOp::kRename));
    }
    std::memcpy(to, from, size_t(bytes));
  });
  EXPECT_EQ(copies, 2);
  saver.wait();
  const std::string file = testing::contents_of(root / "a/rank-00000.safetensors");
  const size_t bytes = values.size() * sizeof(float);
  ASSERT_GT(file.size(), bytes);
  EXPECT_EQ(std::memcmp(file.data() + file.size() - bytes, values.data(), bytes), 0);
}

// As from a device that is lost: no rank is left waiting, and the next save succeeds.
TEST(AsyncSaver, ACopyThatFailsIsAnErrorOfEveryRank) {
  const TemporaryDirectory root;
  const auto errors = testing::run_local_world(3, [&](Comm& comm) {
    Ledger ledger;
    AsyncSaver saver(comm, posix_io(), ledger);
    std::vector<float> values(1000, 1);
    SaveRequest request = request_of(root.path(), values);
    const auto numel = int64_t(values.size());
    request.slices.front().shape = {3 * numel};
    request.slices.front().elements = {comm.rank() * numel, (comm.rank() + 1) * numel};
    saver.start(request, [&](void* to, const void* from, int64_t bytes) {
      if (comm.rank() == 1) throw std::runtime_error("the device is lost");
      std::memcpy(to, from, size_t(bytes));
    });
    EXPECT_THAT([&] { saver.wait(); }, ThrowsMessage<IoError>(HasSubstr("rank 1: the device is lost")));
    saver.start(request, copy);
    saver.wait();
  });
  EXPECT_THAT(errors, ::testing::Each(""));
  EXPECT_EQ(testing::contents_of(root / "latest"), "a");
}

// Three ranks whose training never stands still: values change as soon as a save has started, and what a save leaves is
// listed, and asked for by busy() and failed(), while the threads write. Under ThreadSanitizer, too.
TEST(AsyncSaver, ManySavesWhileEverythingElseGoesOn) {
  const int saves = testing::release() ? 1000 : 60;
  testing::ModelDisk disk;
  std::latch started(3);
  std::atomic<bool> done = false;
  std::atomic<int> read = 0;
  std::thread reader([&] {  // as `zeroshard checkpoint list` beside a run
    started.wait();
    const Directory root = Directory::open(disk, testing::kVersionsRoot);
    for (int64_t last = 0; !done; ++read) {
      const StoreListing listing = list_store(root);
      EXPECT_THAT(listing.bad, ::testing::IsEmpty());
      ASSERT_NE(listing.newest(), nullptr);
      EXPECT_GE(listing.newest()->step, last);
      last = listing.newest()->step;
    }
  });
  const auto errors = testing::run_local_world(3, [&](Comm& comm) {
    Ledger ledger;
    AsyncSaver saver(comm, disk, ledger);
    testing::Random random(uint64_t(comm.rank()));
    for (int number = 1; number <= saves; ++number) {
      testing::VersionShare share(number, comm.rank(), 3);
      const SaveRequest request =
          testing::version_request({.number = number, .tag = concat("v", number), .step = number, .keep = 2}, share);
      saver.prepare(request);
      saver.start(request, copy);
      share.overwrite();
      if (random() % 3 == 0) {
        EXPECT_FALSE(saver.failed());
      }
      const bool watch = random() % 3 == 0;
      while (watch && saver.busy()) std::this_thread::yield();
      if (random() % 8 == 0) saver.wait();
      if (number == 2) {
        saver.wait();
        started.count_down();
      }
    }
    saver.wait();
  });
  done = true;
  reader.join();
  EXPECT_THAT(errors, ::testing::Each(""));
  EXPECT_GT(read, 0);
  EXPECT_EQ(testing::load_version(disk), std::to_string(saves));
  EXPECT_EQ(list_store(Directory::open(disk, testing::kVersionsRoot)).committed.size(), 2);
}

}  // namespace
}  // namespace zeroshard
