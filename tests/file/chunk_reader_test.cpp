#include "file/chunk_reader.h"

#include <fcntl.h>
#include <gmock/gmock.h>

#include <atomic>
#include <chrono>
#include <deque>
#include <mutex>
#include <thread>

#include "base/write_hold.h"
#include "file/support.h"
#include "support/around_io.h"
#include "support/random.h"
#include "support/release.h"

namespace zeroshard {
namespace {

using testing::TemporaryDirectory;
using Access = ChunkStore::Access;

constexpr int64_t kReadChunk = 4 * kSumNumel;
constexpr int kSlots = 3;

const std::vector<ChunkGroup> kReadGroups = {{3 * kReadChunk + 5 * kBlockNumel, kSlots, "first"},
                                             {kBlockNumel, kSlots, "small"},
                                             {2 * kReadChunk, kSlots, "last"}};

ChunkStore::Options read_options(const TemporaryDirectory& directory, int buffer_count, RingSystem* ring = nullptr) {
  ChunkStore::Options options;
  options.directories = {directory.path()};
  options.buffer_count = buffer_count;
  options.chunk_numel = kReadChunk;
  options.block_bytes = int64_t{1} << 15;
  options.queue_depth = 8;
  options.thread_count = 2;
  options.ring = ring;
  return options;
}

// A store that threads share, and what it should hold: by group, slot and element.
struct Shared {
  Shared(const ChunkStore::Options& options, Io& io) : store(kReadGroups, options, io) {
    for (const ChunkGroup& group : kReadGroups)
      values.emplace_back(kSlots, std::vector<float>(size_t(group.numel), 0.F));
  }

  ChunkReader reader(size_t group, int slot) {
    const auto alone = [this](const std::function<void()>& call) {
      const std::scoped_lock lock(mutex);
      call();
    };
    return {store, alone, group, slot};
  }
  void will_need(size_t group) {
    const std::scoped_lock lock(mutex);
    store.will_need(group, {0, kReadGroups[group].numel});
  }
  // An update: every value becomes another.
  void change(size_t group, Range range) {
    const std::scoped_lock lock(mutex);
    store.lend(group, range, Access::kModify, [&](Range part, std::span<float* const> slots) {
      for (size_t slot = 0; slot < slots.size(); ++slot)
        for (int64_t i = 0; i < part.size(); ++i)
          slots[slot][i] = values[group][slot][size_t(part.begin + i)] += float(1 + (part.begin + i) % 7) + float(slot);
    });
  }
  void change(size_t group) { change(group, {0, kReadGroups[group].numel}); }
  void look(size_t group, Range range) {
    const std::scoped_lock lock(mutex);
    store.lend(group, range, Access::kRead, [](Range, std::span<float* const>) {});
  }

  std::mutex mutex;
  ChunkStore store;
  std::vector<std::vector<std::vector<float>>> values;
};

std::vector<float> read(ChunkReader& reader, Range range) {
  std::vector<float> result(size_t(range.size()), -1);
  reader.read(range, result.data());
  return result;
}

Range any_range(testing::SeededRandom& random, int64_t numel) {
  const auto a = int64_t(random() % uint64_t(numel + 1)), b = int64_t(random() % uint64_t(numel + 1));
  return {std::min(a, b), std::max(a, b)};
}

// In buffers, changed or not, on their way to the file or from it, or in the file alone.
TEST(ChunkReader, ReadsValuesWhereverTheyLie) {
  const TemporaryDirectory directory;
  for (const bool use_ring : {false, true}) {
    for (const int buffer_count : {1, 2, 5}) {
      for (const uint64_t seed : testing::seeds(3)) {
        SCOPED_TRACE(concat("ring ", use_ring, ", buffers ", buffer_count, ", seed ", seed));
        testing::SeededRandom random(seed);
        Shared shared(read_options(directory, buffer_count, use_ring ? &kernel_ring() : nullptr), posix_io());
        for (int step = 0; step < 60; ++step) {
          const size_t group = random() % kReadGroups.size();
          const Range range = any_range(random, kReadGroups[group].numel);
          if (random() % 4 == 0) shared.will_need(random() % kReadGroups.size());
          random() % 3 == 0 ? shared.look(group, range) : shared.change(group, range);
          const size_t other = random() % kReadGroups.size();
          const int slot = int(random() % kSlots);
          ChunkReader reader = shared.reader(other, slot);
          for (int part = 0; part < 3; ++part) {
            const Range wanted = any_range(random, kReadGroups[other].numel);
            const std::vector<float>& all = shared.values[other][size_t(slot)];
            ASSERT_EQ(read(reader, wanted), std::vector<float>(all.begin() + wanted.begin, all.begin() + wanted.end));
            const Range bytes = any_range(random, kReadGroups[other].numel * int64_t{sizeof(float)});
            std::vector<std::byte> found(size_t(bytes.size()));
            reader.read_bytes(bytes, found.data());
            const auto* const first = reinterpret_cast<const std::byte*>(all.data());
            ASSERT_TRUE(std::equal(found.begin(), found.end(), first + bytes.begin));
          }
        }
      }
    }
  }
}

// Among them those of a group that has 16-bit values alone, and of chunks of an odd number of blocks.
TEST(ChunkReader, ReadsValuesOf16Bits) {
  const TemporaryDirectory directory;
  const std::vector<ChunkGroup> groups = {{2 * kReadChunk + 3 * kBlockNumel, 3, "", 2}, {kBlockNumel, 1, "", 1}};
  for (const int buffer_count : {1, 3}) {
    testing::SeededRandom random{uint64_t(buffer_count)};
    ChunkStore store(groups, read_options(directory, buffer_count), posix_io());
    const auto expected = [](size_t slot, int64_t element) { return uint16_t(element * 3 + int64_t(slot) * 1000); };
    for (size_t group = 0; group < groups.size(); ++group) {
      const size_t wide = size_t(groups[group].slots - groups[group].narrow_slots);
      store.lend(group, {0, groups[group].numel}, Access::kOverwrite, [&](Range part, std::span<float* const> slots) {
        for (size_t slot = wide; slot < slots.size(); ++slot)
          for (int64_t i = 0; i < part.size(); ++i)
            reinterpret_cast<uint16_t*>(slots[slot])[i] = expected(slot, part.begin + i);
      });
      for (size_t slot = wide; slot < size_t(groups[group].slots); ++slot) {
        ChunkReader reader(
            store, [](const auto& call) { call(); }, group, int(slot));
        for (int i = 0; i < 20; ++i) {
          const Range range = any_range(random, groups[group].numel);
          std::vector<uint16_t> got(size_t(range.size()));
          reader.read(range, got.data());
          for (int64_t at = 0; at < range.size(); ++at)
            ASSERT_EQ(got[size_t(at)], expected(slot, range.begin + at)) << "slot " << slot;
        }
      }
    }
  }
}

// Gives requests to the system when somebody waits for results, and not before.
class HoldingQueue final : public BlockQueue {
 public:
  explicit HoldingQueue(std::unique_ptr<BlockQueue> queue) : queue_(std::move(queue)) {}
  std::string_view name() const override { return queue_->name(); }
  void start(std::span<const BlockRequest> requests) override {
    held_.insert(held_.end(), requests.begin(), requests.end());
  }
  int collect(bool wait, std::vector<BlockResult>& results) override {
    if (!wait) return 0;
    if (!held_.empty()) queue_->start(std::exchange(held_, {}));
    return queue_->collect(true, results);
  }

 private:
  std::unique_ptr<BlockQueue> queue_;
  std::vector<BlockRequest> held_;
};

// An update is announced right after one state of the chunk was set: the other states come into the same buffer.
TEST(ChunkReader, ReadsWhatHasChangedWhileTheRestArrives) {
  const TemporaryDirectory directory;
  const auto hold = [](std::unique_ptr<BlockQueue> queue) { return std::make_unique<HoldingQueue>(std::move(queue)); };
  ChunkStore store(kReadGroups, read_options(directory, /*buffer_count=*/2), posix_io(), hold);
  const Range all{0, kReadChunk};
  store.lend(
      2, all, Access::kOverwrite,
      [](Range part, std::span<float* const> slots) { std::fill_n(slots[0], part.size(), 7.F); }, /*slot=*/0);
  store.will_need(2, all);
  ChunkReader reader(
      store, [](const auto& call) { call(); }, 2, 0);
  EXPECT_THAT(read(reader, all), ::testing::Each(7.F));
  ChunkReader other(
      store, [](const auto& call) { call(); }, 2, 1);
  EXPECT_THAT(read(other, all), ::testing::Each(0.F));
}

int64_t bytes_read(const FaultyIo& io) {
  int64_t bytes = 0;
  for (const IoCall& call : io.log())
    if (call.op == IoOp::kRead) bytes += std::max<int64_t>(call.result, 0);
  return bytes;
}

// Of small ranges one after the other each value is read once; and what was announced of an update is still read ahead.
TEST(ChunkReader, ReadsOnceAndLeavesThePlanAlone) {
  const TemporaryDirectory directory;
  FaultyIo io(posix_io());
  Shared shared(read_options(directory, 2, &kernel_ring()), io);
  if (shared.store.queue_name() != "io_uring") GTEST_SKIP() << "threads read by the same calls";
  for (const size_t group : {2, 0, 1}) shared.change(group);
  for (const size_t group : {2, 1})
    shared.look(group, {0, kReadGroups[group].numel});  // nothing of group 0 is in a buffer
  for (const size_t group : {1, 2}) shared.will_need(group);
  const int64_t before = shared.store.bytes_read(), begun = bytes_read(io);
  for (int slot = 0; slot < kSlots; ++slot) {
    ChunkReader reader = shared.reader(0, slot);
    for (int64_t at = 0; at < kReadGroups[0].numel; at += 999)
      read(reader, {at, std::min(at + 999, kReadGroups[0].numel)});
  }
  EXPECT_EQ(bytes_read(io) - begun, kReadGroups[0].numel * kSlots * 4);
  for (const size_t group : {1, 2}) shared.change(group);
  EXPECT_LE(shared.store.bytes_read() - before, (kReadGroups[1].numel + kReadGroups[2].numel) * kSlots * 4);
  EXPECT_EQ(bytes_read(io) - begun, kReadGroups[0].numel * kSlots * 4);
}

TEST(ChunkReader, ShortAndInterruptedReadsChangeNothing) {
  const TemporaryDirectory directory;
  for (const bool direct : {true, false}) {
    FaultyIo io(posix_io());
    if (!direct) io.fail({.op = IoOp::kSetDirect, .nth = 1, .error = EINVAL});
    Shared shared(read_options(directory, 1, &kernel_ring()), io);
    shared.change(0);
    shared.change(2);
    io.limit_transfers(8192 + (direct ? 0 : 100));
    io.fail({.op = IoOp::kRead, .nth = 2, .error = EINTR});
    ChunkReader reader = shared.reader(0, 1);
    EXPECT_EQ(read(reader, {0, kReadGroups[0].numel}), shared.values[0][1]);
    EXPECT_EQ(shared.store.files()[0].direct(), direct);
  }
}

TEST(ChunkReader, AnyFailingReadIsToldAndEndsTheStore) {
  const TemporaryDirectory directory;
  int64_t failed = 0;
  for (int64_t nth = 1;; ++nth) {
    FaultyIo io(posix_io());
    Shared shared(read_options(directory, 1, &kernel_ring()), io);
    for (const size_t group : {0, 1, 2}) shared.change(group);
    io.fail({.op = IoOp::kRead, .nth = nth, .error = EIO});
    const std::string message = testing::message_of<IoError>([&] {
      for (int slot = 0; slot < kSlots; ++slot) {
        ChunkReader reader = shared.reader(0, slot);
        read(reader, {0, kReadGroups[0].numel});
      }
    });
    if (!io.has_failed()) {
      EXPECT_EQ(message, "");
      break;
    }
    ++failed;
    EXPECT_THAT(message, ::testing::ContainsRegex("read the swap file in " + directory.path() +
                                                  ".*at byte [0-9]+.*\\(first\\)"));
    EXPECT_EQ(testing::message_of<IoError>([&] { shared.change(2); }), message);
    ChunkReader other = shared.reader(2, 0);
    EXPECT_EQ(testing::message_of<IoError>([&] { read(other, {0, 1}); }), message);
  }
  EXPECT_GE(failed, 4 * kSlots);  // one for each slot of a chunk
}

TEST(ChunkReader, AFlippedBitIsFound) {
  const TemporaryDirectory directory;
  for (const bool verify : {true, false}) {
    ChunkStore::Options options = read_options(directory, 1);
    options.verify = verify;
    Shared shared(options, posix_io());
    shared.change(0);
    shared.change(2);  // the buffer is taken
    shared.store.flush();
    const OpenFd other(posix_io(),
                       ::open(concat("/proc/self/fd/", shared.store.files()[0].fd()).c_str(), O_RDWR | O_CLOEXEC));
    const int64_t block = kReadChunk * 12 + kReadChunk * 4 + 2 * kSumNumel * 4;  // chunk 1, slot 1, block 2
    char byte = 0;
    ASSERT_EQ(::pread(other.get(), &byte, 1, block + 17), 1);
    byte = char(byte ^ 4);
    ASSERT_EQ(::pwrite(other.get(), &byte, 1, block + 17), 1);
    for (const int slot : {0, 1}) {
      ChunkReader reader = shared.reader(0, slot);
      const std::string message = testing::message_of<IoError>([&] { read(reader, {0, kReadGroups[0].numel}); });
      const bool is_found = verify && slot == 1;
      EXPECT_EQ(message.find(concat("from byte ", block, " (first)")) != std::string::npos, is_found) << message;
      EXPECT_EQ(message.empty(), !is_found);
    }
  }
}

TEST(ChunkReader, RefusesWhatIsNotThere) {
  const TemporaryDirectory directory;
  Shared shared(read_options(directory, 1), posix_io());
  ChunkReader reader = shared.reader(1, 0), none = shared.reader(1, kSlots);
  EXPECT_THROW(read(reader, {0, kBlockNumel + 1}), ValueError);
  EXPECT_THROW(read(none, {0, 1}), ValueError);
  EXPECT_EQ(read(reader, {5, 5}).size(), 0U);
  shared.change(1);  // the store has not failed
}

// As a save does, and training beside it: what is read is as it was when the save began, whatever is changed as soon as
// it may be. Under ThreadSanitizer, too.
TEST(ChunkReader, ReadsBesideUpdatesThatWait) {
  const int saves = testing::release() ? 300 : 25;
  const TemporaryDirectory directory;
  for (const bool use_ring : {false, true}) {
    std::atomic<uint64_t> calls = 0;
    const auto slow = [&](IoOp op, const auto& call) {
      if (op == IoOp::kRead && ++calls % 5 == 0) std::this_thread::sleep_for(std::chrono::microseconds(300));  // a disk
      return call();
    };
    testing::AroundIo io(posix_io(), slow);
    Shared shared(read_options(directory, 2, use_ring ? &kernel_ring() : nullptr), io);
    std::deque<WriteHold> holds(kReadGroups.size());
    testing::Random random(7);
    for (int save = 0; save < saves; ++save) {
      std::vector<WriteHold::Reading> readings;
      for (WriteHold& hold : holds) readings.push_back(hold.read());
      const auto expected = shared.values;
      std::vector<std::vector<std::vector<float>>> found(kReadGroups.size());
      std::thread saver([&] {
        for (size_t group = 0; group < kReadGroups.size(); ++group) {
          for (int slot = 0; slot < kSlots; ++slot) {
            ChunkReader reader = shared.reader(group, slot);
            found[group].push_back(read(reader, {0, kReadGroups[group].numel}));
          }
          readings[group].reset();
        }
      });
      for (uint64_t steps = random() % 3; steps-- > 0;) {
        for (size_t group = 0; group < kReadGroups.size(); ++group) shared.will_need(group);
        for (size_t group = 0; group < kReadGroups.size(); ++group) {
          shared.look(group, {0, kReadGroups[group].numel});
          holds[group].await_readers();
          shared.change(group);
        }
      }
      saver.join();
      ASSERT_EQ(found, expected) << save;
    }
  }
}

}  // namespace
}  // namespace zeroshard
