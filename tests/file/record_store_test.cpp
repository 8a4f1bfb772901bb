#include "file/record_store.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <thread>

#include "base/align.h"
#include "file/support.h"
#include "support/faulty_queue.h"
#include "support/random.h"

namespace zeroshard {
namespace {

using testing::FaultyQueue;
using testing::QueueFaults;
using testing::TemporaryDirectory;

RecordStore::Options record_options(const TemporaryDirectory& directory, RingSystem* ring = nullptr) {
  RecordStore::Options options;
  options.directories = {directory.path()};
  options.block_bytes = int64_t{1} << 16;
  options.queue_depth = 8;
  options.thread_count = 2;
  options.ring = ring;
  return options;
}

RecordStore::Wrap wrap_records_with(QueueFaults& faults) {
  return
      [&faults](std::unique_ptr<BlockQueue> queue) { return std::make_unique<FaultyQueue>(std::move(queue), faults); };
}

std::string some_bytes(int64_t bytes, uint64_t seed = 1) {
  testing::Random random(seed);
  return testing::random_bytes(random, bytes);
}

RecordStore::Id put(RecordStore& store, const std::string& text) {
  return store.put({reinterpret_cast<const std::byte*>(text.data()), text.size()});
}

std::string get(RecordStore& store, RecordStore::Id id, size_t bytes) {
  const DirectBuffer memory = store.get(id);
  return {reinterpret_cast<const char*>(memory.get()), bytes};
}

// Of any order of taking and giving back, the stretches that are taken never overlap, and what all gave back is whole.
TEST(FreeSpace, LendsEachByteToOneAndJoinsWhatComesBack) {
  for (const uint64_t seed : testing::seeds(20)) {
    testing::SeededRandom random(seed);
    FreeSpace space;
    std::map<int64_t, int64_t> taken;
    for (int step = 0; step < 300; ++step) {
      if (random() % 2 == 0 && !taken.empty()) {
        const auto any = std::next(taken.begin(), random.between(0, int(taken.size()) - 1));
        space.give_back(any->first, any->second);
        taken.erase(any);
        continue;
      }
      const int64_t bytes = random.between(1, 9);
      std::optional<int64_t> offset = space.take(bytes);
      if (!offset) {
        space.extend(space.begin_of_tail() + bytes);
        offset = space.take(bytes);
      }
      ASSERT_TRUE(offset.has_value());
      ASSERT_LE(*offset + bytes, space.end());
      const auto next = taken.lower_bound(*offset);
      ASSERT_TRUE(next == taken.end() || *offset + bytes <= next->first);
      ASSERT_TRUE(next == taken.begin() || std::prev(next)->first + std::prev(next)->second <= *offset);
      taken.emplace(*offset, bytes);
    }
    for (const auto& [offset, bytes] : taken) space.give_back(offset, bytes);
    EXPECT_EQ(space.free_bytes(), space.end());
    EXPECT_EQ(space.take(space.end()), 0);
    EXPECT_EQ(space.take(1), std::nullopt);
  }
}

// Records come back as they were, in any order and as often as they are asked for, with requests that fall short.
TEST(RecordStore, GivesBackWhatWasPut) {
  const TemporaryDirectory one, other;
  for (const bool use_ring : {false, true}) {
    for (const uint64_t seed : testing::seeds(3)) {
      testing::SeededRandom random(seed);
      QueueFaults faults;
      faults.all_short = seed % 2 == 1;
      RecordStore::Options options = record_options(one, use_ring ? &kernel_ring() : nullptr);
      options.directories.push_back(other.path());
      RecordStore store(options, posix_io(), {}, wrap_records_with(faults));
      std::map<RecordStore::Id, std::string> kept;
      for (int step = 0; step < 120; ++step) {
        if (const uint64_t what = random() % 8; what < 4 || kept.empty()) {
          const int64_t most = what == 0 ? 3 * kRecordPieceBytes : 70'000;
          std::string text = testing::random_bytes(random, random.between(1, int(most)));
          const RecordStore::Id id = put(store, text);
          kept.emplace(id, text);
          std::fill(text.begin(), text.end(), 'x');  // the caller's memory is its own again
        } else if (what == 4) {
          store.will_get_newest();
        } else {
          // Mostly the newest, as backward passes go.
          const auto at =
              what == 5 ? std::next(kept.begin(), random.between(0, int(kept.size()) - 1)) : std::prev(kept.end());
          const uint64_t how = random() % 3;  // as a graph that is dropped, one that is kept, and others
          if (how != 0) {
            ASSERT_EQ(get(store, at->first, at->second.size()), at->second);
          }
          if (how == 1) continue;
          store.drop(at->first);
          kept.erase(at);
        }
      }
      EXPECT_EQ(store.num_records(), std::ssize(kept));
      for (const auto& [id, text] : kept) store.drop(id);
      EXPECT_EQ(store.free_bytes(), store.file_bytes());
      EXPECT_EQ(faults.conflicts, 0);
    }
  }
}

TEST(RecordStore, TheFileDoesNotGrowFromStepToStep) {
  const TemporaryDirectory directory;
  RecordStore store(record_options(directory, &kernel_ring()), posix_io());
  int64_t after_first = 0;
  for (int step = 0; step < 300; ++step) {
    std::vector<RecordStore::Id> ids;
    for (int layer = 0; layer < 6; ++layer)
      ids.push_back(put(store, some_bytes(20'000 + 4096 * (layer % 3), uint64_t(step))));
    for (; !ids.empty(); ids.pop_back()) {
      EXPECT_EQ(get(store, ids.back(), 100), some_bytes(104, uint64_t(step)).substr(0, 100));
      store.drop(ids.back());
    }
    if (step == 0) after_first = store.file_bytes();
    ASSERT_EQ(store.file_bytes(), after_first);
  }
  EXPECT_EQ(after_first, 2 * (align_up(20'000, 4096) * 3 + 3 * 4096));
}

// While a record is used the one before it is read, so that a pass backwards begins no read but the first by itself.
TEST(RecordStore, ReadsTheRecordBeforeAhead) {
  const TemporaryDirectory directory;
  QueueFaults faults;
  RecordStore store(record_options(directory), posix_io(), {}, wrap_records_with(faults));
  const std::string text = some_bytes(200'000);
  std::vector<RecordStore::Id> ids;
  for (int i = 0; i < 4; ++i) ids.push_back(put(store, text));
  store.will_get_newest();
  const int64_t of_one = faults.reads;
  EXPECT_EQ(of_one, ceil_div(align_up(200'000, 4096), int64_t{1} << 16));
  for (int i = 3; i >= 0; --i) {
    EXPECT_EQ(get(store, ids[size_t(i)], text.size()), text);
    EXPECT_EQ(faults.reads, of_one * std::min(4, 5 - i)) << i;
    store.drop(ids[size_t(i)]);
  }
  EXPECT_EQ(store.bytes_read(), 4 * align_up(200'000, 4096));
}

// Does nothing before somebody waits.
class LazyQueue final : public BlockQueue {
 public:
  explicit LazyQueue(std::unique_ptr<BlockQueue> queue) : queue_(std::move(queue)) {}
  std::string_view name() const override { return "lazy"; }
  void start(std::span<const BlockRequest> requests) override {
    given_.insert(given_.end(), requests.begin(), requests.end());
  }
  int collect(bool wait, std::vector<BlockResult>& results) override {
    if (wait && !given_.empty()) queue_->start(std::exchange(given_, {}));
    return queue_->collect(wait, results);
  }

 private:
  std::unique_ptr<BlockQueue> queue_;
  std::vector<BlockRequest> given_;
};

TEST(RecordStore, ABufferIsFilledAgainWhenItIsWritten) {
  const TemporaryDirectory directory;
  const auto lazy = [](std::unique_ptr<BlockQueue> queue) { return std::make_unique<LazyQueue>(std::move(queue)); };
  RecordStore store(record_options(directory), posix_io(), {}, lazy);
  std::vector<RecordStore::Id> ids;
  for (uint64_t i = 0; i < 3 * kRecordBuffers; ++i) ids.push_back(put(store, some_bytes(5000, i)));
  for (uint64_t i = 3 * kRecordBuffers; i-- > 0;) EXPECT_EQ(get(store, ids[i], 5000), some_bytes(5000, i));
}

// All requests of a long record are under way at once: nobody starts the rest of them while the caller computes.
TEST(RecordStore, ReadsALongRecordWithoutBeingAskedAgain) {
  const TemporaryDirectory directory;
  QueueFaults faults;
  RecordStore store(record_options(directory), posix_io(), {}, wrap_records_with(faults));
  const int64_t bytes = 40 * (int64_t{1} << 16);  // five times what the queue takes in blocks
  const RecordStore::Id id = put(store, some_bytes(bytes));
  store.will_get_newest();
  int64_t begun = 0;
  for (const auto& [tag, request] : faults.under_way)
    begun += request.kind == BlockRequest::Kind::kRead ? request.bytes : 0;
  EXPECT_EQ(begun, bytes);
  EXPECT_EQ(get(store, id, size_t(bytes)), some_bytes(bytes));
}

TEST(RecordStore, AnyFailingRequestIsToldAndEndsTheStore) {
  const TemporaryDirectory directory;
  for (const bool use_ring : {false, true}) {
    for (int64_t nth = 1;; ++nth) {
      QueueFaults faults;
      faults.nth = nth;
      faults.error = EIO;
      std::vector<std::string> told;
      const auto listen = [&](const std::string& message) { told.push_back(message); };
      RecordStore store(record_options(directory, use_ring ? &kernel_ring() : nullptr), posix_io(), listen,
                        wrap_records_with(faults));
      const std::string text = some_bytes(300'000);
      std::vector<RecordStore::Id> ids;
      const std::string message = testing::message_of<IoError>([&] {
        for (int i = 0; i < 3; ++i) ids.push_back(put(store, text));
        for (int i = 2; i >= 0; --i) {
          EXPECT_EQ(get(store, ids[size_t(i)], text.size()), text);
          store.drop(ids[size_t(i)]);
        }
      });
      if (faults.failed == 0) {
        EXPECT_EQ(message, "");
        break;
      }
      if (message.empty()) {  // the last write of a record that was dropped: known at the next call
        EXPECT_NE(testing::message_of<IoError>([&] { put(store, text); }), "");
        continue;
      }
      EXPECT_THAT(message,
                  ::testing::ContainsRegex("(read|write) the swap file in " + directory.path() + ".*at byte [0-9]+"));
      EXPECT_EQ(told, std::vector{message});
      EXPECT_EQ(testing::message_of<IoError>([&] { put(store, text); }), message);
      EXPECT_EQ(testing::message_of<IoError>([&] { store.will_get_newest(); }), message);
      for (const RecordStore::Id id : ids) store.drop(id);
      EXPECT_EQ(told.size(), 1U);
    }
  }
}

// As io_uring does where the thread that started a request ends.
TEST(RecordStore, ACancelledRequestIsGivenAgain) {
  const TemporaryDirectory directory;
  for (int64_t nth = 1; nth <= 10; ++nth) {
    QueueFaults faults;
    faults.nth = nth;
    faults.error = ECANCELED;
    RecordStore store(record_options(directory), posix_io(), {}, wrap_records_with(faults));
    const RecordStore::Id id = put(store, some_bytes(300'000));
    EXPECT_EQ(get(store, id, 300'000), some_bytes(300'000));
    EXPECT_EQ(faults.failed, 1);
  }
}

TEST(RecordStore, ThreadsThatEndLeaveTheirRecordsWhole) {
  const TemporaryDirectory directory;
  RecordStore store(record_options(directory, &kernel_ring()), posix_io());
  std::vector<RecordStore::Id> ids(8);
  const auto in_threads = [&](const auto& each) {
    std::vector<std::thread> threads;
    for (size_t i = 0; i < ids.size(); ++i) threads.emplace_back([&, i] { each(i); });
    for (std::thread& thread : threads) thread.join();
  };
  in_threads([&](size_t i) { ids[i] = put(store, some_bytes(150'000, i)); });
  in_threads([&](size_t i) { EXPECT_EQ(get(store, ids[i], 150'000), some_bytes(150'000, i)); });
  in_threads([&](size_t i) { store.drop(ids[i]); });
  EXPECT_EQ(store.num_records(), 0);
  EXPECT_EQ(store.free_bytes(), store.file_bytes());
}

TEST(RecordStore, AFlippedBitIsFound) {
  const TemporaryDirectory directory;
  for (const bool verify : {true, false}) {
    RecordStore::Options options = record_options(directory);
    options.verify = verify;
    RecordStore store(options, posix_io());
    const int64_t bytes = 2 * kRecordPieceBytes + 10;
    const RecordStore::Id first = put(store, some_bytes(bytes)), second = put(store, some_bytes(bytes));
    EXPECT_EQ(get(store, first, 5), some_bytes(bytes).substr(0, 5));
    const OpenFd other(posix_io(),
                       ::open(concat("/proc/self/fd/", store.files()[0].swap.fd()).c_str(), O_RDWR | O_CLOEXEC));
    const int64_t at = align_up(bytes, 4096) + kRecordPieceBytes + 17;
    char byte = 0;
    ASSERT_EQ(::pread(other.get(), &byte, 1, at), 1);
    byte = char(byte ^ 4);
    ASSERT_EQ(::pwrite(other.get(), &byte, 1, at), 1);
    const std::string message = testing::message_of<IoError>([&] { store.get(second); });
    if (!verify) {
      EXPECT_EQ(message, "");
      continue;
    }
    EXPECT_THAT(message, ::testing::HasSubstr(concat("from byte ", align_up(bytes, 4096) + kRecordPieceBytes)));
    EXPECT_EQ(testing::message_of<IoError>([&] { store.get(first); }), message);
  }
}

TEST(RecordStore, ADirectoryThatCannotBeUsedIsTold) {
  const TemporaryDirectory directory;
  RecordStore::Options options = record_options(directory);
  options.directories.push_back(directory / "missing");
  EXPECT_THAT(testing::message_of<IoError>([&] { RecordStore(options, posix_io()); }),
              ::testing::HasSubstr(directory / "missing"));
  EXPECT_TRUE(std::filesystem::is_empty(directory.path()));
}

// A disk that is full ends the store with what is needed and free; what was there before it stays readable until then.
TEST(RecordStore, AFullDiskIsTold) {
  const TemporaryDirectory directory;
  FaultyIo io(posix_io());
  RecordStore store(record_options(directory), io);
  const RecordStore::Id id = put(store, some_bytes(5000));
  io.fail({.op = IoOp::kAllocate, .error = ENOSPC});
  EXPECT_THAT(testing::message_of<IoError>([&] { put(store, some_bytes(50'000)); }),
              ::testing::ContainsRegex("reserve space for the swap file in .*needs 53248 more bytes, [0-9]+ are free"));
  store.drop(id);
}

}  // namespace
}  // namespace zeroshard
