#include "file/chunk_store.h"

#include <fcntl.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <utility>

#include "file/support.h"
#include "support/faulty_queue.h"
#include "support/random.h"
#include "support/release.h"

namespace zeroshard {
namespace {

using testing::FaultyQueue;
using testing::QueueFaults;
using testing::TemporaryDirectory;

constexpr int64_t kSmallChunk = 4 * kSumNumel;

ChunkStore::Options options_in(const TemporaryDirectory& directory, int buffer_count = 4, RingSystem* ring = nullptr) {
  ChunkStore::Options options;
  options.directories = {directory.path()};
  options.buffer_count = buffer_count;
  options.chunk_numel = kSmallChunk;
  options.block_bytes = int64_t{1} << 15;
  options.queue_depth = 8;
  options.thread_count = 2;
  options.ring = ring;
  return options;
}

ChunkStore::Wrap with(QueueFaults& faults) {
  return
      [&faults](std::unique_ptr<BlockQueue> queue) { return std::make_unique<FaultyQueue>(std::move(queue), faults); };
}

// What a store should hold.
class Model {
 public:
  explicit Model(const std::vector<ChunkGroup>& groups) {
    for (const ChunkGroup& group : groups) {
      values_.emplace_back(size_t(group.slots), std::vector<float>(size_t(group.numel), 0.F));
      wide_.push_back(size_t(group.slots - group.narrow_slots));
    }
  }

  // Lends the range and compares, except with kOverwrite; adds `increment` to every value, except with kRead.
  void lend(ChunkStore& store, size_t group, Range range, ChunkStore::Access access, float increment = 0,
            const QueueFaults* queue = nullptr, std::optional<int> slot = std::nullopt) {
    using Access = ChunkStore::Access;
    int64_t next = range.begin;
    const auto use = [&](Range part, std::span<float* const> slots) {
      ASSERT_EQ(part.begin, next);
      ASSERT_EQ(slots.size(), slot ? 1 : values_[group].size());
      next = part.end;
      for (size_t each = 0; each < slots.size(); ++each) {
        if (queue != nullptr) expect_at_rest(*queue, slots[each], part.size(), access);
        const size_t own = each + size_t(slot.value_or(0));
        for (int64_t i = 0; i < part.size(); ++i) {
          float& expected = values_[group][own][size_t(part.begin + i)];
          auto* const half = reinterpret_cast<uint16_t*>(slots[each]) + i;
          const bool is_half = own >= wide_[group];
          if (access != Access::kOverwrite) {
            const bool is_right = is_half ? *half == half_of(expected) : slots[each][i] == expected;
            ASSERT_TRUE(is_right) << "group " << group << ", slot " << own << ", element " << part.begin + i;
          }
          if (access == Access::kRead) continue;
          expected += increment + float(own);
          is_half ? void(*half = half_of(expected)) : void(slots[each][i] = expected);
        }
      }
    };
    store.lend(group, range, access, use, slot);
    EXPECT_EQ(next, range.end);
  }

 private:
  // 16 bits that differ wherever small whole numbers do.
  static uint16_t half_of(float value) { return uint16_t(int64_t(value)); }

  // What is lent is not being read, nor written if it is to be modified.
  static void expect_at_rest(const QueueFaults& queue, const float* values, int64_t numel, ChunkStore::Access access) {
    const auto* const begin = reinterpret_cast<const std::byte*>(values);
    for (const auto& [tag, request] : queue.under_way) {
      const bool same = begin < request.data + request.bytes && request.data < begin + numel * int64_t{sizeof(float)};
      EXPECT_FALSE(same && (request.kind == BlockRequest::Kind::kRead || access != ChunkStore::Access::kRead));
    }
  }

  std::vector<std::vector<std::vector<float>>> values_;  // [group][slot][element]
  std::vector<size_t> wide_;                             // by group: slots of fp32 values
};

const std::vector<ChunkGroup> kGroups = {{3 * kSmallChunk + 5 * kBlockNumel, 3},
                                         {kBlockNumel, 3},
                                         {0, 3},
                                         {2 * kSmallChunk, 2},
                                         {kSmallChunk, 0},
                                         {2 * kSmallChunk + 7 * kBlockNumel, 3, "", 2},
                                         {kBlockNumel, 2, "", 2}};

int64_t numel_of(const ChunkGroup& group) {
  return group.slots > 0 ? group.numel : 0;
}

// Any order, with and without hints that are right or wrong, looks like memory.
TEST(ChunkStore, LendsWhatWasWritten) {
  const TemporaryDirectory one, other;
  for (const bool use_ring : {false, true}) {
    for (const int buffer_count : {1, 2, 3, 5}) {
      for (const uint64_t seed : testing::seeds(2)) {
        SCOPED_TRACE(concat("ring ", use_ring, ", buffers ", buffer_count, ", seed ", seed));
        testing::SeededRandom random(seed);
        ChunkStore::Options options = options_in(one, buffer_count, use_ring ? &kernel_ring() : nullptr);
        options.directories.push_back(other.path());
        QueueFaults faults;
        ChunkStore store(kGroups, options, posix_io(), with(faults));
        Model model(kGroups);
        const auto any_range = [&](size_t group) {
          const int64_t numel = numel_of(kGroups[group]);
          const int64_t a = int64_t(random() % uint64_t(numel + 1)), b = int64_t(random() % uint64_t(numel + 1));
          return Range{std::min(a, b), std::max(a, b)};
        };
        for (int step = 0; step < 60; ++step) {
          const size_t group = random() % kGroups.size();
          if (random() % 4 == 0) {
            for (uint64_t i = random() % 3; i-- > 0;) {
              const size_t next = random() % kGroups.size();
              store.will_need(next, any_range(next));
            }
          }
          if (random() % 8 == 0) store.flush();
          constexpr std::array kWays = {ChunkStore::Access::kRead, ChunkStore::Access::kModify,
                                        ChunkStore::Access::kOverwrite};
          const auto access = kWays[random() % 3];
          std::optional<int> slot;
          if (kGroups[group].slots > 0 && random() % 2 == 0) slot = int(random() % uint64_t(kGroups[group].slots));
          model.lend(store, group, any_range(group), access, 1, &faults, slot);
        }
        EXPECT_EQ(faults.conflicts, 0);
      }
    }
  }
}

// A copy that runs when the test lets it, or when it is awaited.
class LateReader final : public ChunkStore::Reader {
 public:
  LateReader(Range part, const float* from) : from_(from, from + part.size()), expected_(from_.begin(), from_.end()) {}
  bool is_done() override { return done_; }
  void await() override {
    if (!done_) ++awaited;
    finish();
  }
  void finish() {
    if (!std::exchange(done_, true)) same = std::equal(from_.begin(), from_.end(), expected_.begin());
  }

  int awaited = 0;
  bool same = false;

 private:
  std::span<const float> from_;
  std::vector<float> expected_;
  bool done_ = false;
};

TEST(ChunkStore, WhatIsReadOnStaysAsItIsUntilThen) {
  using Access = ChunkStore::Access;
  const TemporaryDirectory directory;
  const std::vector<ChunkGroup> groups = {{3 * kSmallChunk + kBlockNumel, 1}, {2 * kSmallChunk, 1}};
  for (const int buffer_count : {1, 2, 5}) {
    for (const uint64_t seed : testing::seeds(3)) {
      SCOPED_TRACE(concat("buffers ", buffer_count, ", seed ", seed));
      testing::SeededRandom random(seed);
      std::vector<std::shared_ptr<LateReader>> readers;
      {
        ChunkStore store(groups, options_in(directory, buffer_count), posix_io());
        for (int step = 0; step < 80; ++step) {
          const size_t group = random() % groups.size();
          const int64_t begin = int64_t(random() % uint64_t(groups[group].numel));
          const Range range{begin, begin + 1 + int64_t(random() % uint64_t(groups[group].numel - begin))};
          if (random() % 3 == 0) store.will_need(random() % groups.size(), {0, kBlockNumel});
          const auto access = std::array{Access::kRead, Access::kModify, Access::kOverwrite}[random() % 3];
          store.lend(group, range, access, [&](Range part, std::span<float* const> slots) {
            if (access != Access::kRead) std::fill_n(slots[0], part.size(), float(random() % 1000));
            readers.push_back(std::make_shared<LateReader>(part, slots[0]));
            store.read_on(readers.back());
          });
          if (random() % 4 == 0) readers[random() % readers.size()]->finish();
        }
      }
      for (const auto& reader : readers) ASSERT_TRUE(reader->is_done() && reader->same);
    }
  }
}

// Reading ahead takes other buffers.
TEST(ChunkStore, NobodyWaitsForReadersAsLongAsThereAreOtherBuffers) {
  const TemporaryDirectory directory;
  const std::vector<ChunkGroup> groups = {{6 * kSmallChunk, 1}};
  ChunkStore store(groups, options_in(directory, 4), posix_io());
  std::vector<std::shared_ptr<LateReader>> readers;
  const auto read = [&](int64_t chunk) {
    const Range range{chunk * kSmallChunk, (chunk + 1) * kSmallChunk};
    store.lend(0, range, ChunkStore::Access::kRead, [&](Range part, std::span<float* const> slots) {
      readers.push_back(std::make_shared<LateReader>(part, slots[0]));
      store.read_on(readers.back());
    });
  };
  store.will_need(0, {0, 6 * kSmallChunk});
  for (const int64_t chunk : {0, 1, 2, 3}) read(chunk);
  for (const auto& reader : readers) EXPECT_FALSE(reader->is_done());
  readers[2]->finish();
  read(4);  // in its buffer
  EXPECT_TRUE(std::all_of(readers.begin(), readers.end(), [](const auto& reader) { return reader->awaited == 0; }));
  read(5);
  EXPECT_EQ(std::count_if(readers.begin(), readers.end(), [](const auto& reader) { return reader->awaited == 1; }), 1);
}

TEST(ChunkStore, ReadsAndWritesNoMoreThanWasLent) {
  const TemporaryDirectory directory;
  const std::vector<ChunkGroup> groups = {{3 * kSmallChunk, 3}};
  ChunkStore store(groups, options_in(directory, 2), posix_io());
  Model model(groups);
  EXPECT_EQ(store.bytes_written(), 0);
  model.lend(store, 0, {0, 3 * kSmallChunk}, ChunkStore::Access::kRead);
  store.flush();
  EXPECT_EQ(store.bytes_read(), 3 * kSmallChunk * 12);
  EXPECT_EQ(store.bytes_written(), 0);
  // One block in the middle, of all three slots; and nothing.
  model.lend(store, 0, {kSumNumel + 5, kSumNumel + 6}, ChunkStore::Access::kModify, 2);
  model.lend(store, 0, {7, 7}, ChunkStore::Access::kModify, 2);
  store.flush();
  EXPECT_EQ(store.bytes_read(), 3 * kSmallChunk * 12 + kSumNumel * 12);
  EXPECT_EQ(store.bytes_written(), kSumNumel * 12);
  // What a buffer still has is not read again.
  model.lend(store, 0, {kSumNumel, 2 * kSumNumel}, ChunkStore::Access::kRead);
  EXPECT_EQ(store.bytes_read(), 3 * kSmallChunk * 12 + kSumNumel * 12);
}

// A pass over all elements for each slot moves as much as one over all slots; what is overwritten is not read.
TEST(ChunkStore, SlotsOneAfterTheOtherAreReadAndWrittenOnce) {
  const TemporaryDirectory directory;
  const std::vector<ChunkGroup> groups = {{3 * kSmallChunk, 3}};
  ChunkStore store(groups, options_in(directory, 2), posix_io());
  Model model(groups);
  const auto pass = [&](ChunkStore::Access access, int64_t parts) {
    const int64_t size = 3 * kSmallChunk / parts;
    for (int slot = 0; slot < 3; ++slot)
      for (int64_t part = 0; part < parts; ++part)
        model.lend(store, 0, {part * size, (part + 1) * size}, access, 1, nullptr, slot);
    store.flush();
  };
  const int64_t all = 3 * kSmallChunk * 12;
  pass(ChunkStore::Access::kOverwrite, 3);
  EXPECT_EQ(store.bytes_written(), all);
  EXPECT_EQ(store.bytes_read(), 0);
  pass(ChunkStore::Access::kRead, 1);
  EXPECT_EQ(store.bytes_written(), all);
  EXPECT_LE(store.bytes_read(), all);
  // Only the blocks at the ends of what is overwritten are read, once.
  const int64_t before = store.bytes_read();
  model.lend(store, 0, {100, 2 * kSmallChunk - 100}, ChunkStore::Access::kOverwrite, 1, nullptr, 1);
  EXPECT_LE(store.bytes_read() - before, 2 * kSumNumel * 4);
  model.lend(store, 0, {0, 3 * kSmallChunk}, ChunkStore::Access::kRead);
  EXPECT_THROW(model.lend(store, 0, {0, 1}, ChunkStore::Access::kRead, 0, nullptr, 3), ValueError);
}

// Neighbouring parts of a chunk that are lent one after the other are read and written once.
TEST(ChunkStore, PartsOfAChunkMakeOneReadAndOneWrite) {
  const TemporaryDirectory directory;
  const std::vector<ChunkGroup> groups = {{2 * kSmallChunk, 3}};
  ChunkStore store(groups, options_in(directory), posix_io());
  Model model(groups);
  const Range first{0, 1000}, second{1000, kSmallChunk + 10}, third{kSmallChunk + 10, 2 * kSmallChunk};
  for (const Range range : {first, second, third}) store.will_need(0, range);
  for (const Range range : {first, second, third}) model.lend(store, 0, range, ChunkStore::Access::kModify, 3);
  store.flush();
  EXPECT_EQ(store.bytes_read(), 2 * kSmallChunk * 12);
  EXPECT_EQ(store.bytes_written(), 2 * kSmallChunk * 12);
  model.lend(store, 0, {0, 2 * kSmallChunk}, ChunkStore::Access::kRead);
}

// The reads of the next chunk are under way, and the writes of the last one, while a chunk is used.
TEST(ChunkStore, ReadsAheadAndWritesBehindExceptWithOneBuffer) {
  const TemporaryDirectory directory;
  const std::vector<ChunkGroup> groups = {{4 * kSmallChunk, 1}, {4 * kSmallChunk, 1}};
  constexpr int64_t kRequests = kSmallChunk * 4 / (int64_t{1} << 15);  // of a chunk
  for (const int buffer_count : {1, 4}) {
    QueueFaults faults;
    ChunkStore store(groups, options_in(directory, buffer_count), posix_io(), with(faults));
    for (const size_t group : {1, 0}) store.will_need(group, {0, 4 * kSmallChunk});
    std::vector<int64_t> reads, writes;  // when a chunk is used: started so far, and under way
    for (const size_t group : {1, 0}) {
      store.lend(group, {0, 4 * kSmallChunk}, ChunkStore::Access::kModify, [&](Range, std::span<float* const>) {
        reads.push_back(faults.reads);
        writes.push_back(faults.writes_under_way);
        faults.hold_writes = buffer_count > 1 && reads.size() == 1;  // else it would be chance what is done by then
      });
    }
    ASSERT_EQ(reads.size(), 8U);
    for (size_t i = 0; i < reads.size(); ++i) {
      if (buffer_count == 1) {
        EXPECT_EQ(reads[i], int64_t(i + 1) * kRequests) << i;
        EXPECT_EQ(writes[i], 0) << i;
      } else if (i < 2) {  // later it depends on the disk which buffers are free
        EXPECT_GE(reads[i], int64_t(i + 2) * kRequests) << i;
        EXPECT_GE(writes[i], int64_t(i) * kRequests) << i;
      }
    }
  }
}

TEST(ChunkStore, ShortAndInterruptedTransfersChangeNothing) {
  const TemporaryDirectory directory;
  for (const bool use_ring : {false, true}) {
    QueueFaults faults;
    faults.all_short = true;
    ChunkStore store(kGroups, options_in(directory, 3, use_ring ? &kernel_ring() : nullptr), posix_io(), with(faults));
    Model model(kGroups);
    for (const int error : {EINTR, EAGAIN, 0}) {
      faults.error = error;
      faults.nth = faults.requests + 3;
      model.lend(store, 0, {0, kGroups[0].numel}, ChunkStore::Access::kModify, 1);
      model.lend(store, 3, {0, kGroups[3].numel}, ChunkStore::Access::kModify, 1);
      model.lend(store, 0, {0, kGroups[0].numel}, ChunkStore::Access::kRead);
    }
    EXPECT_EQ(faults.failed, 3);
  }
}

TEST(ChunkStore, WorksWithoutDirectAccess) {
  const TemporaryDirectory directory;
  FaultyIo io(posix_io());
  io.fail({.op = IoOp::kSetDirect, .nth = 1, .error = EINVAL});
  ChunkStore store(kGroups, options_in(directory), io);
  EXPECT_FALSE(store.files()[0].direct());
  Model model(kGroups);
  model.lend(store, 0, {0, kGroups[0].numel}, ChunkStore::Access::kModify, 1);
  model.lend(store, 3, {0, kGroups[3].numel}, ChunkStore::Access::kModify, 1);
  model.lend(store, 0, {0, kGroups[0].numel}, ChunkStore::Access::kRead);
}

// A device that wants another alignment than it promised: from then on the page cache is used.
TEST(ChunkStore, TurnsDirectAccessOffWhereItIsRefused) {
  const TemporaryDirectory directory;
  FaultyIo io(posix_io());
  io.fail({.op = IoOp::kWrite, .nth = 2, .error = EINVAL});
  ChunkStore store(kGroups, options_in(directory), io);
  EXPECT_TRUE(io.has_failed());
  Model model(kGroups);
  model.lend(store, 0, {0, kGroups[0].numel}, ChunkStore::Access::kModify, 1);
  model.lend(store, 0, {0, kGroups[0].numel}, ChunkStore::Access::kRead);
}

// Steps of training, with the n-th request failing, until no request fails. Errors of writes behind come at the latest
// at the next call.
int64_t byte_of(const std::string& message) {
  constexpr std::string_view kAt = "at byte ";
  return std::stoll(message.substr(message.find(kAt) + kAt.size()));
}

TEST(ChunkStore, AnyFailingRequestIsToldAndEndsTheStore) {
  const TemporaryDirectory directory;
  const std::vector<ChunkGroup> groups = {{2 * kSmallChunk, 3, "one"}, {kSmallChunk, 3, "other"}};
  for (const bool use_ring : {false, true}) {
    for (const int error : {EIO, ENOSPC, EDQUOT}) {
      for (int64_t nth = 1;; nth += testing::release() ? 1 : error == EIO ? 2 : 7) {
        QueueFaults faults;
        faults.nth = nth;
        faults.error = error;
        std::unique_ptr<ChunkStore> store;
        const auto train = [&] {
          store = std::make_unique<ChunkStore>(groups, options_in(directory, 2, use_ring ? &kernel_ring() : nullptr),
                                               posix_io(), with(faults));
          Model model(groups);
          for (int step = 0; step < 2; ++step) {
            for (const size_t group : {0, 1}) store->will_need(group, {0, groups[group].numel});
            for (const size_t group : {0, 1})
              model.lend(*store, group, {0, groups[group].numel}, ChunkStore::Access::kModify, 1);
          }
          store->flush();
        };
        const std::string message = testing::message_of<IoError>(train);
        if (faults.failed == 0) {
          EXPECT_EQ(message, "");
          break;
        }
        EXPECT_THAT(message, ::testing::ContainsRegex("(read|write) the swap file in " + directory.path() +
                                                      ".*at byte [0-9]+ \\((one|other)\\)"))
            << nth;
        EXPECT_EQ(message.find("(one)") != std::string::npos, byte_of(message) < 2 * kSmallChunk * 12) << message;
        if (!store) continue;
        for (int again = 0; again < 2; ++again) {
          EXPECT_EQ(testing::message_of<IoError>([&] {
                      store->lend(0, {0, 1}, ChunkStore::Access::kRead, [](Range, std::span<float* const>) {});
                    }),
                    message);
          EXPECT_EQ(testing::message_of<IoError>([&] { store->will_need(0, {0, 1}); }), message);
          EXPECT_EQ(testing::message_of<IoError>([&] { store->flush(); }), message);
        }
      }
    }
  }
}

TEST(ChunkStore, AnExceptionOfABorrowerPassesThrough) {
  const TemporaryDirectory directory;
  ChunkStore store(kGroups, options_in(directory), posix_io());
  EXPECT_THROW(store.lend(0, {0, 2 * kSmallChunk}, ChunkStore::Access::kModify,
                          [](Range, std::span<float* const> slots) {
                            slots[0][0] = 5;
                            throw std::runtime_error("stop");
                          }),
               std::runtime_error);
  store.lend(3, {0, kGroups[3].numel}, ChunkStore::Access::kModify, [](Range, std::span<float* const>) {});
  store.lend(0, {0, 1}, ChunkStore::Access::kRead,
             [](Range, std::span<float* const> slots) { EXPECT_EQ(slots[0][0], 5); });
}

TEST(ChunkStore, AFlippedBitIsFound) {
  const TemporaryDirectory directory;
  for (const bool verify : {true, false}) {
    ChunkStore::Options options = options_in(directory, 1);
    options.verify = verify;
    ChunkStore store(kGroups, options, posix_io());
    Model model(kGroups);
    model.lend(store, 0, {0, kGroups[0].numel}, ChunkStore::Access::kModify, 1);
    store.flush();
    const OpenFd other(posix_io(), ::open(concat("/proc/self/fd/", store.files()[0].fd()).c_str(), O_RDWR | O_CLOEXEC));
    ASSERT_GE(other.get(), 0);
    const int64_t at = kSmallChunk * 12 + 2 * kSumNumel * 4 + 17;  // chunk 1, master weights, block 2
    char byte = 0;
    ASSERT_EQ(::pread(other.get(), &byte, 1, at), 1);
    byte = char(byte ^ 4);
    ASSERT_EQ(::pwrite(other.get(), &byte, 1, at), 1);
    const auto read = [&](Range range) {
      return testing::message_of<IoError>(
          [&] { store.lend(0, range, ChunkStore::Access::kRead, [](Range, std::span<float* const>) {}); });
    };
    EXPECT_EQ(read({kSmallChunk, kSmallChunk + 2 * kSumNumel}), "");  // the blocks before it
    const std::string message = read({0, 2 * kSmallChunk});
    if (!verify) {
      EXPECT_EQ(message, "");
      continue;
    }
    EXPECT_THAT(message, ::testing::HasSubstr(concat("the swap file in ", directory.path())));
    EXPECT_THAT(message, ::testing::HasSubstr(concat("from byte ", kSmallChunk * 12 + 2 * kSumNumel * 4)));
    EXPECT_EQ(read({0, 1}), message);
  }
}

TEST(ChunkStore, LeavesNothingInItsDirectories) {
  const TemporaryDirectory directory;
  {
    const ChunkStore store(kGroups, options_in(directory), posix_io());
    EXPECT_TRUE(std::filesystem::is_empty(directory.path()));
    EXPECT_EQ(store.layout().total_bytes(), store.files()[0].bytes());
  }
  EXPECT_TRUE(std::filesystem::is_empty(directory.path()));
}

TEST(ChunkStore, NothingToKeepIsFine) {
  const TemporaryDirectory directory;
  const std::vector<ChunkGroup> groups = {{0, 3}, {kBlockNumel, 0}};
  ChunkStore store(groups, options_in(directory, 4, &kernel_ring()), posix_io());
  store.will_need(0, {0, 0});
  store.lend(0, {0, 0}, ChunkStore::Access::kModify, [](Range, std::span<float* const>) { FAIL(); });
  store.flush();
  EXPECT_EQ(store.memory_bytes(), 0);
}

TEST(ChunkLayout, StripesChunksOverTheFiles) {
  const std::vector<ChunkGroup> groups = {{5 * kSmallChunk + kBlockNumel, 3}, {kBlockNumel, 1}};
  const ChunkLayout layout(groups, 2, kSmallChunk);
  ASSERT_EQ(layout.chunks().size(), 7U);
  int64_t next[2] = {0, 0};
  for (size_t i = 0; i < layout.chunks().size(); ++i) {
    const Chunk& chunk = layout.chunks()[i];
    EXPECT_EQ(chunk.file, i % 2);
    EXPECT_EQ(chunk.offset, next[i % 2]);
    next[i % 2] += chunk.bytes();
  }
  EXPECT_EQ(layout.file_bytes(0), next[0]);
  EXPECT_EQ(layout.total_bytes(), (5 * kSmallChunk + kBlockNumel) * 12 + kBlockNumel * 4);
  EXPECT_EQ(layout.find(0, kSmallChunk), 1U);
  EXPECT_EQ(layout.find(1, 0), 6U);
}

// Direct I/O needs it, whatever has 16 bits.
TEST(ChunkLayout, EveryBlockLiesOnWholePages) {
  const std::vector<ChunkGroup> groups = {
      {kSmallChunk + kBlockNumel, 3, "", 2}, {kBlockNumel, 1, "", 1}, {3 * kBlockNumel, 2, "", 2}};
  const ChunkLayout layout(groups, 1, kSmallChunk);
  for (const Chunk& chunk : layout.chunks()) {
    EXPECT_EQ(chunk.offset % 4096, 0);
    int64_t next = 0;
    for (int slot = 0; slot < chunk.slots; ++slot) {
      for (size_t block = 0; block < chunk.blocks(); ++block) {
        const Range bytes = chunk.block_bytes(slot, block);
        EXPECT_EQ(bytes.begin, next);
        EXPECT_EQ(bytes.size() % 4096, 0);
        EXPECT_GE(bytes.size(), chunk.block(block).size() * chunk.value_bytes(slot));
        next = bytes.end;
      }
    }
    EXPECT_EQ(chunk.bytes(), next);
  }
  // 4 and 2 + 2 bytes an element, half a page in the last chunk of odd length, in each slot of 16 bits.
  EXPECT_EQ(layout.total_bytes(), (kSmallChunk + kBlockNumel) * 8 + 2 * 2048 + 4096 + 3 * kBlockNumel * 4 + 2 * 2048);
}

TEST(ChunkTotals, AreThoseOfAllChunks) {
  for (const uint64_t seed : testing::seeds(20)) {
    testing::SeededRandom random(seed);
    std::vector<ChunkGroup> groups;
    for (int group = random.between(0, 4); group > 0; --group)
      groups.push_back({random.between(0, 20) * kBlockNumel, random.between(0, kMaxSlots)});
    for (ChunkGroup& group : groups) {
      group.narrow_slots = random.between(0, group.slots);
      group.narrow_bytes = random.between(1, 2);
    }
    const int64_t chunk_numel = random.between(1, 9) * kBlockNumel;
    const ChunkTotals totals(groups, chunk_numel);
    const ChunkLayout layout(groups, 1, chunk_numel);
    size_t num_chunks = 0, num_sums = 0;
    int64_t longest = 0;
    for (const Chunk& chunk : layout.chunks()) {
      EXPECT_EQ(chunk.first_sum, num_sums);
      ++num_chunks;
      num_sums += chunk.blocks() * size_t(chunk.slots);
      longest = std::max(longest, chunk.bytes());
    }
    EXPECT_EQ(totals.num_chunks, num_chunks);
    EXPECT_EQ(totals.num_sums, num_sums);
    EXPECT_EQ(totals.record_bytes, longest);
  }
}

}  // namespace
}  // namespace zeroshard
