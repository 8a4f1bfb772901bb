#include "file/block_queue.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <linux/io_uring.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <optional>

#include "base/unique_fd.h"
#include "file/direct_buffer.h"
#include "file/support.h"
#include "file/swap_file.h"
#include "file/transfer_queue.h"
#include "support/faulty_queue.h"

namespace zeroshard {
namespace {

using testing::TemporaryDirectory;

// The kernel's ring, but the n-th call fails.
class FaultyRing final : public RingSystem {
 public:
  int64_t nth = 0;
  int error = 0;
  int64_t calls = 0;
  int refuses = -1;  // what may not be registered

  int setup(unsigned entries, void* params) override { return fails() ? -error : kernel_ring().setup(entries, params); }
  int enter(int ring, unsigned to_submit, unsigned to_wait_for) override {
    return fails() ? -error : kernel_ring().enter(ring, to_submit, to_wait_for);
  }
  int register_with(int ring, unsigned what, const void* items, unsigned count) override {
    if (int(what) == refuses) return -ENOMEM;
    return fails() ? -error : kernel_ring().register_with(ring, what, items, count);
  }
  void* map(int ring, size_t bytes, int64_t offset) override {
    return fails() ? nullptr : kernel_ring().map(ring, bytes, offset);
  }

 private:
  bool fails() { return ++calls == nth; }
};

bool has_ring() {
  int why = 0;
  return make_ring_queue({}, kernel_ring(), why) != nullptr;
}

std::unique_ptr<BlockQueue> make_queue(const QueueFiles& files, bool ring) {
  int why = 0;
  return ring ? make_ring_queue(files, kernel_ring(), why) : make_thread_queue(files, posix_io(), 3);
}

class BlockQueues : public ::testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    if (GetParam() && !has_ring()) GTEST_SKIP() << "the system refuses io_uring";
  }
};
INSTANTIATE_TEST_SUITE_P(Kinds, BlockQueues, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "io_uring" : "threads"; });

constexpr int64_t kBlock = 4 * kDirectAlignment;
constexpr int kBlocks = 8;

// Writes blocks from one buffer, and reads them in another order to a second one.
void write_and_read(BlockQueue& queue, const QueueFiles& files) {
  testing::Random random(7);
  const std::string text = testing::random_bytes(random, kBlocks * kBlock);
  std::memcpy(files.buffers[0].data(), text.data(), text.size());
  for (const auto kind : {BlockRequest::Kind::kWrite, BlockRequest::Kind::kRead}) {
    std::vector<BlockRequest> requests;
    std::byte* const memory = files.buffers[kind == BlockRequest::Kind::kRead].data();
    for (int i = 0; i < kBlocks; ++i) {
      const int64_t at = (i * 3 % kBlocks) * kBlock;
      requests.push_back({kind, 0, memory + at, kBlock, at, uint64_t(100 + i)});
    }
    queue.start(requests);
    std::vector<BlockResult> results;
    while (results.size() < kBlocks) queue.collect(/*wait=*/true, results);
    std::vector<uint64_t> tags;
    for (const BlockResult& result : results) {
      EXPECT_EQ(result.result, kBlock);
      tags.push_back(result.tag);
    }
    EXPECT_THAT(tags, ::testing::UnorderedElementsAre(100, 101, 102, 103, 104, 105, 106, 107));
  }
  EXPECT_EQ(std::memcmp(files.buffers[1].data(), text.data(), text.size()), 0);
}

struct TwoBuffers {
  TemporaryDirectory directory;
  SwapFile file{posix_io(), directory.path(), kBlocks* kBlock};
  DirectBuffer one = allocate_direct(kBlocks * kBlock), other = allocate_direct(kBlocks * kBlock);
  QueueFiles files{{file.fd()}, {{one.get(), kBlocks* kBlock}, {other.get(), kBlocks* kBlock}}, kBlocks};
};

TEST_P(BlockQueues, ReadWhatTheyWrote) {
  TwoBuffers two;
  const auto queue = make_queue(two.files, GetParam());
  write_and_read(*queue, two.files);
}

TEST_P(BlockQueues, TellTheErrorOfARequest) {
  TwoBuffers two;
  const OpenFd read_only(posix_io(), ::open("/dev/null", O_RDONLY | O_CLOEXEC));
  two.files.fds.push_back(read_only.get());
  const auto queue = make_queue(two.files, GetParam());
  const BlockRequest request{BlockRequest::Kind::kWrite, 1, two.one.get(), kBlock, 0, 5};
  queue->start({&request, 1});
  std::vector<BlockResult> results;
  queue->collect(/*wait=*/true, results);
  ASSERT_EQ(results.size(), 1U);
  EXPECT_EQ(results[0].tag, 5U);
  EXPECT_EQ(results[0].result, -EBADF);
}

TEST_P(BlockQueues, EndWhenNothingIsUnderWay) {
  TwoBuffers two;
  std::memset(two.one.get(), 7, kBlocks * kBlock);
  {
    const auto queue = make_queue(two.files, GetParam());
    const BlockRequest request{BlockRequest::Kind::kWrite, 0, two.one.get(), kBlocks * kBlock, 0, 1};
    queue->start({&request, 1});
  }
  std::memset(two.one.get(), 0, kBlocks * kBlock);
  EXPECT_EQ(posix_io().pread(two.file.fd(), two.other.get(), kBlock, 0), kBlock);
  EXPECT_EQ(two.other.get()[0], std::byte{7});
}

TEST(RingQueue, IsRefusedWhereAnyCallOfItsSetUpIs) {
  if (!has_ring()) GTEST_SKIP() << "the system refuses io_uring";
  for (const int error : {ENOSYS, EPERM, ENOMEM}) {
    for (int64_t nth = 1; nth <= 4; ++nth) {  // setup, two mappings, the question for operations
      FaultyRing ring;
      ring.nth = nth;
      ring.error = error;
      int why = 0;
      EXPECT_EQ(make_ring_queue({}, ring, why), nullptr) << nth;
      EXPECT_LT(why, 0);
    }
  }
}

TEST(RingQueue, WorksWithoutRegisteredFilesAndBuffers) {
  if (!has_ring()) GTEST_SKIP() << "the system refuses io_uring";
  for (const int what : {IORING_REGISTER_FILES, IORING_REGISTER_BUFFERS}) {
    TwoBuffers two;
    FaultyRing ring;
    ring.refuses = what;
    int why = 0;
    const auto queue = make_ring_queue(two.files, ring, why);
    ASSERT_NE(queue, nullptr) << why;
    write_and_read(*queue, two.files);
  }
}

// Calls of a running ring: an interruption changes nothing, another error is that of the requests it was for.
TEST(RingQueue, RepeatsInterruptedCallsAndTellsOtherErrors) {
  if (!has_ring()) GTEST_SKIP() << "the system refuses io_uring";
  TwoBuffers two;
  FaultyRing ring;
  int why = 0;
  const auto queue = make_ring_queue(two.files, ring, why);
  ASSERT_NE(queue, nullptr);
  const BlockRequest request{BlockRequest::Kind::kWrite, 0, two.one.get(), kBlock, 0, 9};
  const auto result_of_call = [&](int64_t nth, int error) {
    ring.calls = 0;
    ring.nth = nth;
    ring.error = error;
    queue->start({&request, 1});
    std::vector<BlockResult> results;
    queue->collect(/*wait=*/true, results);
    EXPECT_EQ(results.size(), 1U);
    EXPECT_EQ(results.at(0).tag, 9U);
    return results.at(0).result;
  };
  EXPECT_EQ(result_of_call(1, EINTR), kBlock);
  EXPECT_EQ(result_of_call(2, EINTR), kBlock);
  EXPECT_EQ(result_of_call(1, EAGAIN), -EAGAIN);
  EXPECT_EQ(result_of_call(1, EBUSY), -EBUSY);
  EXPECT_EQ(result_of_call(0, 0), kBlock);  // the ring is as before
  queue->start({&request, 1});
  std::vector<BlockResult> results;
  ring.calls = 0;
  ring.nth = 1;
  ring.error = EIO;
  const int waited = queue->collect(/*wait=*/true, results);
  EXPECT_TRUE(waited == -EIO || results.size() == 1);  // it may have been done already
}

// A system that has room for `room` requests at a time, and for none before it `recovers`. It moves nothing.
class NarrowQueue final : public BlockQueue {
 public:
  size_t room = 0;
  std::chrono::steady_clock::time_point recovers = {};
  int refused = 0;

  std::string_view name() const override { return "narrow"; }
  void start(std::span<const BlockRequest> requests) override {
    for (const BlockRequest& request : requests) {
      const bool fits = under_way_.size() < room && std::chrono::steady_clock::now() >= recovers;
      refused += fits ? 0 : 1;
      if (fits) {
        under_way_.push_back({request.tag, request.bytes});
      } else {
        refusals_.push_back({request.tag, -EAGAIN});
      }
    }
  }
  int collect(bool wait, std::vector<BlockResult>& results) override {
    results.swap(refusals_);
    if (!results.empty() || !wait) return 0;
    results.push_back(under_way_.front());
    under_way_.erase(under_way_.begin());
    return 0;
  }

 private:
  std::vector<BlockResult> under_way_, refusals_;
};

void write_blocks(std::unique_ptr<NarrowQueue> narrow, int max_refused) {
  const int& refused = narrow->refused;
  constexpr int kBlocks = 6;
  TransferQueue queue(std::move(narrow), posix_io(), {{-1, "file"}}, 1, kBlocks, kDirectAlignment);
  const DirectBuffer memory = allocate_direct(kBlocks * kDirectAlignment);
  queue.begin({BlockRequest::Kind::kWrite, 0, memory.get(), kBlocks * kDirectAlignment, 0, 0});
  while (!queue.is_idle()) queue.advance(/*wait=*/true);
  EXPECT_EQ(queue.bytes_moved(BlockRequest::Kind::kWrite), kBlocks * kDirectAlignment);
  EXPECT_GT(refused, 0);
  EXPECT_LE(refused, max_refused);
}

TEST(TransferQueue, WhatTheSystemHasNoRoomForWaitsUntilSomethingIsDone) {
  auto narrow = std::make_unique<NarrowQueue>();
  narrow->room = 2;
  write_blocks(std::move(narrow), /*max_refused=*/4 + 3 + 2 + 1);  // what is over, after each that is done
}

// A thousand tries at once would be over before it recovers.
TEST(TransferQueue, ASystemWithoutRoomGetsTimeToRecover) {
  auto narrow = std::make_unique<NarrowQueue>();
  narrow->room = 100;
  narrow->recovers = std::chrono::steady_clock::now() + std::chrono::milliseconds(30);
  write_blocks(std::move(narrow), /*max_refused=*/1000);
}

TEST(SwapFile, HasNoNameAndIsForThisUserAlone) {
  const TemporaryDirectory directory;
  for (const bool unnamed : {true, false}) {
    FaultyIo io(posix_io());
    if (!unnamed) io.fail({.op = IoOp::kCreate, .nth = 1, .error = EOPNOTSUPP});
    const SwapFile file(io, directory.path(), 1 << 20);
    EXPECT_TRUE(std::filesystem::is_empty(directory.path()));
    struct stat found;
    ASSERT_EQ(::fstat(file.fd(), &found), 0);
    EXPECT_EQ(found.st_mode & 0777, 0600U);
    EXPECT_EQ(found.st_size, 1 << 20);
    EXPECT_GE(found.st_blocks * 512, 1 << 20) << "the space is not reserved";
    EXPECT_EQ(found.st_nlink, 0U);
    EXPECT_NE(::fcntl(file.fd(), F_GETFD) & FD_CLOEXEC, 0);
  }
}

TEST(SwapFile, ItsSpaceIsFreeAlthoughAChildHasItOpen) {
  const TemporaryDirectory directory;
  std::optional<SwapFile> file(std::in_place, posix_io(), directory.path(), 1 << 20);
  const UniqueFd childs(::dup(file->fd()));
  const auto end_in_a_child = [&] {  // which has a copy of the object: the file is its parent's
    file.reset();
    ::_exit(0);
  };
  const pid_t child = ::fork();
  if (child == 0) end_in_a_child();
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  struct stat found;
  ASSERT_EQ(::fstat(childs.get(), &found), 0);
  EXPECT_EQ(found.st_size, 1 << 20);
  file.reset();
  ASSERT_EQ(::fstat(childs.get(), &found), 0);
  EXPECT_EQ(found.st_size, 0);
  EXPECT_EQ(found.st_blocks, 0);
}

TEST(SwapFile, SaysWhyADirectoryCannotBeUsed) {
  const TemporaryDirectory directory;
  const auto message = [](const std::string& path, int64_t bytes) {
    return testing::message_of<IoError>([&] { SwapFile(posix_io(), path, bytes); });
  };
  EXPECT_THAT(message(directory / "none", 1), ::testing::HasSubstr("none: No such file or directory"));
  testing::put(directory / "file", "x");
  EXPECT_THAT(message(directory / "file", 1), ::testing::HasSubstr("file: Not a directory"));
  EXPECT_THAT(message(directory.path(), int64_t{1} << 60),
              ::testing::ContainsRegex("swap file in " + directory.path() +
                                       ".*needs 1152921504606846976 bytes, [0-9]+ are free\\. Free some space"));
}

TEST(SwapFile, EveryFailingCallIsToldWithThePath) {
  const TemporaryDirectory directory;
  for (const int error : {EIO, ENOSPC, EDQUOT, EROFS, EACCES}) {
    for (int64_t nth = 1;; ++nth) {
      FaultyIo io(posix_io());
      io.fail({.op = std::nullopt, .nth = nth, .error = error});
      const std::string message = testing::message_of<IoError>([&] { SwapFile(io, directory.path(), 4096); });
      if (!io.has_failed()) break;
      const IoOp failed = io.log()[size_t(nth - 1)].op;
      const bool optional = failed == IoOp::kSetDirect || failed == IoOp::kTruncate || failed == IoOp::kClose;
      EXPECT_EQ(message.empty(), optional) << nth;
      if (!optional) {
        EXPECT_THAT(message, ::testing::HasSubstr(directory.path()));
      }
      EXPECT_EQ(io.open_files(), 0);
    }
  }
}

}  // namespace
}  // namespace zeroshard
