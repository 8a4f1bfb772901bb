// A program of its own: it replaces the allocation functions of all that is linked into it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <latch>
#include <new>
#include <span>
#include <utility>

#include "base/format.h"
#include "checkpoint/agreement.h"
#include "checkpoint/async_saver.h"
#include "checkpoint/versions.h"
#include "file/read_ahead.h"
#include "file/record_store.h"
#include "file/support.h"
#include "memory/block_cache.h"
#include "support/around_io.h"
#include "support/model_disk.h"
#include "zeroshard/error.h"

namespace {

// Which allocation fails: the n-th from arm() on, of at least so many bytes, of the threads that count; and all later
// ones, when it is sticky.
class Allocations {
 public:
  void arm(int64_t nth, bool sticky, bool all_threads, size_t bytes) {
    sticky_ = sticky;
    all_threads_ = all_threads;
    bytes_ = bytes;
    failed_ = false;
    left_ = nth;
    armed_ = true;
  }
  void disarm() { armed_ = false; }
  bool has_failed() const { return failed_; }

  bool fails(size_t bytes) {
    if (!armed_ || bytes < bytes_ || exempt > 0 || !(all_threads_ || counted)) return false;
    const int64_t left = --left_;
    if (left != 0 && (left > 0 || !sticky_)) return false;
    failed_ = true;
    return true;
  }

  // Of this thread.
  static thread_local int exempt;
  static thread_local bool counted;

 private:
  std::atomic<bool> armed_ = false, failed_ = false, sticky_ = false, all_threads_ = false;
  std::atomic<int64_t> left_ = 0;
  std::atomic<size_t> bytes_ = 0;
};

thread_local int Allocations::exempt = 0;
thread_local bool Allocations::counted = false;
constinit Allocations allocations;  // the allocation functions have no other way to it

// What the test itself needs, or what stands for a device.
class Exempt {
 public:
  Exempt() { ++Allocations::exempt; }
  ~Exempt() { --Allocations::exempt; }
  Exempt(const Exempt&) = delete;
  Exempt& operator=(const Exempt&) = delete;
};

}  // namespace

// All of the family that has no alignment: a sanitizer has its own of each.
[[gnu::noinline]] void* operator new(size_t bytes, const std::nothrow_t&) noexcept {
  return allocations.fails(bytes) ? nullptr : std::malloc(bytes > 0 ? bytes : 1);
}
[[gnu::noinline]] void* operator new(size_t bytes) {
  void* const memory = operator new(bytes, std::nothrow);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
[[gnu::noinline]] void operator delete(void* memory) noexcept {
  std::free(memory);
}
void* operator new[](size_t bytes) {
  return operator new(bytes);
}
void* operator new[](size_t bytes, const std::nothrow_t&) noexcept {
  return operator new(bytes, std::nothrow);
}
void operator delete(void* memory, size_t) noexcept {
  operator delete(memory);
}
void operator delete(void* memory, const std::nothrow_t&) noexcept {
  operator delete(memory);
}
void operator delete[](void* memory) noexcept {
  operator delete(memory);
}
void operator delete[](void* memory, size_t) noexcept {
  operator delete(memory);
}
void operator delete[](void* memory, const std::nothrow_t&) noexcept {
  operator delete(memory);
}

// The linker gives these to what calls aligned_alloc (buffers for O_DIRECT) and mmap (the staged copy).
extern "C" {
void* __real_aligned_alloc(size_t alignment, size_t bytes);
void* __wrap_aligned_alloc(size_t alignment, size_t bytes) {
  return allocations.fails(bytes) ? nullptr : __real_aligned_alloc(alignment, bytes);
}
void* __real_mmap(void* address, size_t bytes, int protection, int flags, int fd, off_t offset);
void* __wrap_mmap(void* address, size_t bytes, int protection, int flags, int fd, off_t offset) {
  if (!allocations.fails(bytes)) return __real_mmap(address, bytes, protection, flags, fd, offset);
  errno = ENOMEM;
  return MAP_FAILED;
}
}

namespace zeroshard {
namespace {

using testing::AroundIo;
using testing::DiskTree;
using ::testing::Each;
using ::testing::HasSubstr;
using testing::kVersionTensors;
using testing::load_version;
using testing::ModelDisk;
using ::testing::Not;
using testing::QuietLog;
using testing::save_version;
using testing::Version;
using testing::VersionShare;

// What a device does needs no memory of the process.
auto device(ModelDisk& disk) {
  return AroundIo(disk, [](IoOp, const auto& call) {
    const Exempt own;
    return call();
  });
}

constexpr int kRanks = 2;
constexpr const char* kHung = "made no progress";
const Version kOld{.number = 1, .tag = "a", .step = 1};
const std::vector<Version> kNew = {{.number = 2, .tag = "b", .step = 2, .keep = 1},
                                   {.number = 3, .tag = "a", .step = 1}};

// A value of the JSON library cannot be destroyed without some memory: below this, a process may end at once, like one
// that is killed. Not so the rest: see NoMemory.Files.
constexpr size_t kFailing = 2048;

struct Fault {
  int64_t nth = 1;
  int victim = 0;  // its thread; kRanks: any thread of any rank
  bool sticky = false;

  std::string text() const {
    const std::string whose = victim == kRanks ? "any thread" : concat("rank ", victim);
    return concat("allocation ", nth, " of ", whose, sticky ? " and all later ones" : "");
  }
};

// With texts that need more than that.
SaveRequest long_request(const Version& version, const VersionShare& share) {
  SaveRequest request = testing::version_request(version, share);
  const std::string text(3000, 'x');
  request.state = concat("{\"version\": ", version.number, ", \"words\": \"", text, "\"}");
  request.rank_state = concat("{\"text\": \"", text, "\"}");
  request.config_digest = text;
  request.slices[0].aliases = {text};
  return request;
}

DiskTree disk_with_old() {
  ModelDisk disk;
  EXPECT_THAT(save_version(kOld, kRanks, [&](int) -> Io& { return disk; }), Each(""));
  return disk.tree();
}

// Runs `body` on each rank while memory is as `fault` says; what each threw.
std::vector<std::string> run_short_of_memory(const Fault& fault, const std::function<void(Comm&)>& body,
                                             size_t failing = kFailing) {
  const Exempt exempt;
  std::vector<std::string> errors(kRanks);
  CommOptions options;
  options.timeout_ms = 60'000;
  std::latch done(kRanks);  // no communicator goes before: its end would wake who waits
  allocations.arm(fault.nth, fault.sticky, fault.victim == kRanks, failing);
  const auto outer = testing::run_local_world(
      kRanks,
      [&](Comm& comm) {
        const auto rank = size_t(comm.rank());
        Allocations::counted = comm.rank() == fault.victim;
        try {
          body(comm);
        } catch (const std::exception& error) {
          const Exempt message;
          errors[rank] = error.what();
        }
        ++Allocations::exempt;  // for the rest of this thread: only the test is left
        done.arrive_and_wait();
      },
      options);
  allocations.disarm();
  EXPECT_THAT(outer, Each(""));
  EXPECT_THAT(errors, Each(Not(HasSubstr(kHung)))) << fault.text();
  return errors;
}

// Calls `run(fault)`, which returns whether the fault was met, for each allocation.
void for_each_fault(const std::function<bool(const Fault&)>& run) {
  for (const int victim : {0, 1, kRanks}) {
    for (const bool sticky : {false, true}) {
      for (int64_t n = 1; run({n, victim, sticky}); ++n) {
        ASSERT_LT(n, 1000);
        if (::testing::Test::HasFailure()) return;
      }
    }
  }
}

// A cut text would get a checksum of its own, and be a checkpoint.
TEST(NoMemory, ATextIsWholeOrNone) {
  const std::string text(5000, 'x');
  for (int64_t n = 1;; ++n) {
    ASSERT_LT(n, 100);
    Allocations::counted = true;
    allocations.arm(n, /*sticky=*/false, /*all_threads=*/false, 0);
    size_t size = 0;
    try {
      size = concat("text ", 12345, text, text).size();
    } catch (const std::bad_alloc&) {
    }
    allocations.disarm();
    Allocations::counted = false;
    EXPECT_EQ(size, allocations.has_failed() ? 0U : 10'010U) << n;
    if (!allocations.has_failed()) break;
  }
}

// Any allocation of what writes and reads files: std::bad_alloc, and no file stays open.
TEST(NoMemory, Files) {
  ModelDisk disk;
  auto io = device(disk);
  const std::string text(10'000, 'x');
  for (const bool sticky : {false, true}) {
    for (int64_t n = 1;; ++n) {
      ASSERT_LT(n, 1000);
      Allocations::counted = true;
      allocations.arm(n, sticky, /*all_threads=*/false, 0);
      bool thrown = false;
      try {
        Directory root = Directory::create(io, "/disk/files");
        root.remove_tree("below");
        root.create_directory("below");
        Directory below = root.open_directory("below");
        {
          FileWriter writer(below, "large", 9000);
          writer.append(text.data(), 100);
          writer.append_stable(text.data(), 9000);
          writer.finish();
        }
        write_small_file(root, "below/small", "some text");
        const std::string small = read_small_file(below, "small", 100);
        ReadAhead ahead(below, {{"large", 0, 5000}, {"large", 5000, 4100}, {"small", 0, 9}});
        for (int i = 0; i < 3; ++i) ahead.next();
      } catch (const std::bad_alloc&) {
        thrown = true;
      }
      allocations.disarm();
      Allocations::counted = false;
      EXPECT_EQ(thrown, allocations.has_failed()) << n;
      ASSERT_EQ(disk.open_files(), 0U) << "allocation " << n;
      if (!allocations.has_failed()) break;
    }
  }
}

// No memory for a record that is asked for: std::bad_alloc, and no failure of the files. Asked again, it is there.
TEST(NoMemory, ARecordThatIsAskedFor) {
  const testing::TemporaryDirectory directory;
  testing::Random random(1);
  int failures = 0, thrown = 0;
  RecordStore::Options options;
  options.directories = {directory.path()};
  options.thread_count = 1;
  RecordStore store(options, posix_io(), [&](const std::string&) { ++failures; });
  constexpr int64_t kBytes = 100'000;
  std::vector<std::pair<RecordStore::Id, std::string>> records;
  for (int i = 0; i < 4; ++i) {
    const std::string bytes = testing::random_bytes(random, kBytes);
    records.emplace_back(store.put(std::as_bytes(std::span(bytes))), bytes);
  }
  for (const bool sticky : {false, true}) {
    for (int64_t n = 1; n <= 5; ++n) {
      Allocations::counted = true;
      allocations.arm(n, sticky, /*all_threads=*/false, kBytes);
      for (auto record = records.rbegin(); record != records.rend(); ++record) {
        DirectBuffer memory;
        try {
          memory = store.get(record->first);
        } catch (const std::bad_alloc&) {
          ++thrown;
          allocations.disarm();
          memory = store.get(record->first);
        }
        EXPECT_TRUE(std::memcmp(memory.get(), record->second.data(), size_t(kBytes)) == 0);
      }
      allocations.disarm();
      Allocations::counted = false;
    }
  }
  EXPECT_GE(thrown, 4);
  EXPECT_EQ(failures, 0);
}

// A rank has an error to tell, and no memory for its text; or none to hear of it.
TEST(NoMemory, NobodyWaitsForARankThatCannotTell) {
  const std::string text(1000, 'x');
  for_each_fault([&](const Fault& fault) {
    const auto errors = run_short_of_memory(
        fault,
        [&](Comm& comm) {
          together(comm, "test", [&] {
            if (comm.rank() == 1) throw ValueError(text);
          });
        },
        /*failing=*/1);
    EXPECT_THAT(errors, Each(Not(""))) << fault.text();
    return allocations.has_failed();
  });
}

// Nobody crashes or waits for ever; the old or the new checkpoint is there; the next save succeeds.
TEST(NoMemory, WhileSaving) {
  const QuietLog quiet;
  const DiskTree before = disk_with_old();
  for_each_fault([&](const Fault& fault) {
    ModelDisk disk(before);
    auto io = device(disk);
    const Version& version = kNew[size_t(fault.nth) % kNew.size()];
    const auto errors = run_short_of_memory(fault, [&](Comm& comm) {
      ++Allocations::exempt;
      const VersionShare share(version.number, comm.rank(), kRanks);
      const SaveRequest request = long_request(version, share);
      --Allocations::exempt;
      save_checkpoint(request, comm, io);
    });
    const bool failed = errors[0] + errors[1] != "";
    const std::string found = load_version(disk), written = std::to_string(version.number);
    EXPECT_TRUE(found == written || (failed && found == "1")) << fault.text() << ": " << found;
    EXPECT_EQ(errors[0].empty(), errors[1].empty()) << fault.text() << ": '" << errors[0] << "', '" << errors[1] << "'";
    EXPECT_EQ(disk.open_files(), 0U) << fault.text();
    EXPECT_THAT(save_version(version, kRanks, [&](int) -> Io& { return disk; }), Each("")) << fault.text();
    EXPECT_EQ(load_version(disk), written) << fault.text();
    return allocations.has_failed();
  });
}

// No older checkpoint is taken because there is no memory for the newest: an error on every rank, or the values.
TEST(NoMemory, WhileLoading) {
  const QuietLog quiet;
  ModelDisk disk(disk_with_old());
  const Version newest{.number = 2, .tag = "b", .step = 2};
  const auto saved = testing::run_local_world(kRanks, [&](Comm& comm) {
    const VersionShare share(newest.number, comm.rank(), kRanks);
    save_checkpoint(long_request(newest, share), comm, disk);
  });
  ASSERT_THAT(saved, Each(""));
  auto io = device(disk);
  for_each_fault([&](const Fault& fault) {
    std::vector<std::vector<std::vector<float>>> values(kRanks);
    const auto errors = run_short_of_memory(fault, [&](Comm& comm) {
      const auto rank = size_t(comm.rank());
      ++Allocations::exempt;
      VersionShare share(-7, comm.rank(), kRanks);
      const LoadRequest request{
          testing::kVersionsRoot, {}, false, [&](const Manifest&, const TensorIndex&) { return share.slices; }};
      --Allocations::exempt;
      const auto loaded = load_checkpoint(request, comm, io);
      const Exempt result;
      EXPECT_TRUE(loaded && loaded->tag == "b") << fault.text();
      values[rank] = std::move(share.memory);
    });
    for (int rank = 0; rank < kRanks; ++rank)
      if (errors[size_t(rank)].empty()) {
        EXPECT_EQ(values[size_t(rank)], VersionShare(2, rank, kRanks).memory) << fault.text();
      }
    EXPECT_EQ(disk.open_files(), 0U) << fault.text();
    return allocations.has_failed();
  });
  EXPECT_EQ(load_version(disk), "2");
}

// The staged copy, the request, or anything that the thread needs.
TEST(NoMemory, WhileSavingInTheBackground) {
  const QuietLog quiet;
  const DiskTree before = disk_with_old();
  for_each_fault([&](const Fault& fault) {
    ModelDisk disk(before);
    auto io = device(disk);
    const Version& version = kNew[size_t(fault.nth) % kNew.size()];
    const auto errors = run_short_of_memory(fault, [&](Comm& comm) {
      ++Allocations::exempt;
      Ledger ledger;
      AsyncSaver saver(comm, io, ledger);
      VersionShare share(version.number, comm.rank(), kRanks);
      SaveRequest request = long_request(version, share);
      const AsyncSaver::Copy copy = [](void* to, const void* from, int64_t bytes) {
        std::memcpy(to, from, size_t(bytes));
      };
      --Allocations::exempt;
      together(comm, "test", [&] { saver.prepare(request); });  // what can fail on one rank alone
      try {
        saver.start(std::move(request), copy);
        saver.wait();
      } catch (...) {
        ++Allocations::exempt;  // what is destroyed now
        throw;
      }
      ++Allocations::exempt;
    });
    const bool failed = errors[0] + errors[1] != "";
    const std::string found = load_version(disk), written = std::to_string(version.number);
    EXPECT_TRUE(found == written || (failed && found == "1")) << fault.text() << ": " << found;
    EXPECT_THAT(save_version(version, kRanks, [&](int) -> Io& { return disk; }), Each("")) << fault.text();
    EXPECT_EQ(load_version(disk), written) << fault.text();
    return allocations.has_failed();
  });
}

TEST(NoMemory, FreedBlocksGoBeforeATensorDoesNotFit) {
  constexpr size_t kMegabyte = size_t{1} << 20;
  BlockCache cache;
  const BlockCache::Block first = cache.take(2 * kMegabyte), second = cache.take(8 * kMegabyte);
  cache.give_back(second);
  cache.give_back(first);
  Allocations::counted = true;
  allocations.arm(1, /*sticky=*/false, /*all_threads=*/false, kMegabyte);
  const BlockCache::Block block = cache.take(4 * kMegabyte);
  EXPECT_TRUE(allocations.has_failed());
  EXPECT_NE(block.start, nullptr);
  EXPECT_EQ(cache.kept_bytes(), 0);
  cache.give_back(block);
  allocations.arm(1, /*sticky=*/true, /*all_threads=*/false, kMegabyte);
  EXPECT_EQ(cache.take(kMegabyte).start, nullptr);
  allocations.disarm();
  const BlockCache::Block last = cache.take(kMegabyte);
  allocations.arm(1, /*sticky=*/false, /*all_threads=*/false, 0);
  cache.give_back(last);  // without memory for the note of what is kept
  allocations.disarm();
  Allocations::counted = false;
  EXPECT_EQ(cache.kept_bytes(), 0);
}

TEST(NoMemory, ACopyThatDoesNotFitNamesItsSizeAndTheWayOut) {
  ModelDisk disk;
  Ledger ledger;
  const auto comm = make_single_comm();
  AsyncSaver saver(*comm, disk, ledger);
  const VersionShare share(1, 0, 1);
  const SaveRequest request = testing::version_request(kOld, share);
  std::string message;
  Allocations::counted = true;
  allocations.arm(1, /*sticky=*/false, /*all_threads=*/false, kFailing);
  try {
    saver.prepare(request);
  } catch (const ValueError& error) {
    message = error.what();
  }
  allocations.disarm();
  Allocations::counted = false;
  EXPECT_THAT(message, ::testing::AllOf(HasSubstr(concat((kVersionTensors[0].second + 1) * 4, " bytes")),
                                        HasSubstr("zeroshard.checkpoint.async: false")));
  EXPECT_EQ(ledger.current().total(), 0);
  saver.start(request, [](void* to, const void* from, int64_t bytes) { std::memcpy(to, from, size_t(bytes)); });
  saver.wait();
  EXPECT_EQ(load_version(disk), "1");
}

}  // namespace
}  // namespace zeroshard
