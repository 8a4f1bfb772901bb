#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <thread>

#include "base/format.h"
#include "checkpoint/async_saver.h"
#include "checkpoint/calls_within.h"
#include "checkpoint/load.h"
#include "checkpoint/save.h"
#include "checkpoint/store.h"
#include "support/comm_world.h"
#include "support/faulty_io.h"
#include "support/random.h"
#include "zeroshard/error.h"

namespace zeroshard {
namespace {

using testing::SeededRandom;

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

class TempDir {
 public:
  TempDir() {
    std::string name = (fs::temp_directory_path() / "zeroshard-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) std::abort();
    path_ = name;
  }
  ~TempDir() { fs::remove_all(path_); }
  std::string path() const { return path_; }

 private:
  std::string path_;
};

struct Whole {
  std::string name;
  std::vector<int64_t> shape;
  int64_t numel() const {
    int64_t product = 1;
    for (const int64_t size : shape) product *= size;
    return product;
  }
};

// Odd sizes, fewer elements than ranks, none; the large one has more than one piece of a checksum.
const std::vector<Whole> kSmall = {{"big", {3, 1501}}, {"odd", {7, 11}}, {"one", {1}}, {"none", {0, 5}}};
const std::vector<Whole> kLarge = {{"odd", {7, 11}}, {"big", {3, 2'900'001}}};

float value_of(const std::string& name, int64_t element, int64_t step) {
  return float(name[0]) + float(element % 100'003) * 0.5F + float(step) * 1000;
}

// Rank `rank`'s equal share of every tensor.
struct Share {
  Share(const std::vector<Whole>& tensors, int rank, int world_size, int64_t step) {
    for (const Whole& whole : tensors) {
      const int64_t size = (whole.numel() + world_size - 1) / world_size;
      const Range mine = intersect({0, whole.numel()}, {rank * size, (rank + 1) * size});
      std::vector<float>& values = memory.emplace_back(size_t(mine.size()));
      for (int64_t i = 0; i < mine.size(); ++i) values[size_t(i)] = value_of(whole.name, mine.begin + i, step);
      if (mine.size() == 0 && rank > 0) continue;
      slices.push_back({.name = whole.name,
                        .kind = "weight",
                        .dtype = "F32",
                        .aliases = {},
                        .shape = whole.shape,
                        .trainable = true,
                        .updates = step,
                        .elements = mine,
                        .data = host_data(values.data())});
    }
  }
  std::vector<std::vector<float>> memory;
  std::vector<StateSlice> slices;
};

SaveRequest request_for(const std::string& root, int64_t step, const Share& share, int rank) {
  SaveRequest request;
  request.root = root;
  request.tag = "step" + std::to_string(step);
  request.step = step;
  request.state = R"({"step":)" + std::to_string(step) + "}";
  request.rank_state = R"({"rank":)" + std::to_string(rank) + "}";
  request.slices = share.slices;
  return request;
}

Io& plain_io(int) {
  return posix_io();
}

std::vector<std::string> save_as(int world_size, const std::string& root, int64_t step, int keep = 0,
                                 const std::function<Io&(int)>& io_of = plain_io,
                                 const std::vector<Whole>& tensors = kSmall) {
  return testing::run_local_world(world_size, [&](Comm& comm) {
    const Share share(tensors, comm.rank(), world_size, step);
    SaveRequest request = request_for(root, step, share, comm.rank());
    request.keep = keep;
    save_checkpoint(request, comm, io_of(comm.rank()));
  });
}

// Loads equal shares with `world_size` ranks; the step that was found, or why none was.
struct Loaded {
  std::vector<std::string> errors;
  std::vector<int64_t> steps;  // per rank; -1: nothing there
  int64_t wrong = 0;           // elements
};
Loaded load_as(int world_size, const std::string& root, std::optional<std::string> tag = {}, bool strict = false,
               const std::vector<Whole>& tensors = kSmall) {
  Loaded loaded;
  loaded.steps.assign(size_t(world_size), -2);
  std::atomic<int64_t> wrong = 0;
  loaded.errors = testing::run_local_world(world_size, [&](Comm& comm) {
    Share share(tensors, comm.rank(), world_size, -7);
    LoadRequest request{root, tag, strict, [&](const Manifest&, const TensorIndex&) { return share.slices; }};
    const auto found = load_checkpoint(request, comm, posix_io());
    loaded.steps[size_t(comm.rank())] = found ? found->manifest.step : -1;
    if (!found) return;
    EXPECT_EQ(found->manifest.state, R"({"step":)" + std::to_string(found->manifest.step) + "}");
    const Share expected(tensors, comm.rank(), world_size, found->manifest.step);
    for (size_t i = 0; i < share.memory.size(); ++i)
      for (size_t j = 0; j < share.memory[i].size(); ++j) wrong += share.memory[i][j] != expected.memory[i][j];
  });
  loaded.wrong = wrong;
  return loaded;
}

void expect_loads(const std::string& root, int world_size, int64_t step, const std::vector<Whole>& tensors = kSmall) {
  const Loaded loaded = load_as(world_size, root, {}, false, tensors);
  EXPECT_THAT(loaded.errors, Each("")) << world_size;
  EXPECT_THAT(loaded.steps, Each(step)) << world_size;
  EXPECT_EQ(loaded.wrong, 0) << world_size;
}

TEST(Checkpoint, AnyNumberOfRanksReadsWhatAnyNumberWrote) {
  for (const int writers : {1, 2, 3, 7}) {
    const TempDir dir;
    ASSERT_THAT(save_as(writers, dir.path() + "/deep/root", 5), Each(""));
    for (const int readers : {1, 2, 3, 4}) expect_loads(dir.path() + "/deep/root", readers, 5);
  }
}

TEST(Checkpoint, LargeTensorsHaveSeveralPieces) {
  const TempDir dir;
  ASSERT_THAT(save_as(1, dir.path(), 5, 0, plain_io, kLarge), Each(""));
  const Directory root = Directory::open(posix_io(), dir.path());
  EXPECT_EQ(read_manifest(root, "step5").tensors[1].slices[0].hashes.size(), 3U);
  expect_loads(dir.path(), 1, 5, kLarge);
  expect_loads(dir.path(), 3, 5, kLarge);
}

TEST(Checkpoint, NewestCountsAndOldOnesGo) {
  const TempDir dir;
  for (const int64_t step : {3, 20, 100}) ASSERT_THAT(save_as(2, dir.path(), step, /*keep=*/2), Each(""));
  EXPECT_FALSE(fs::exists(dir.path() + "/step3"));
  expect_loads(dir.path(), 3, 100);
  EXPECT_EQ(load_as(1, dir.path(), "step20").steps[0], 20);
  std::string latest;
  std::ifstream(dir.path() + "/latest") >> latest;
  EXPECT_EQ(latest, "step100");
  size_t entries = 0;
  for ([[maybe_unused]] const auto& entry : fs::directory_iterator(dir.path())) ++entries;
  EXPECT_EQ(entries, 3U) << "something was left behind";
}

TEST(Checkpoint, FilesArePrivate) {
  const TempDir dir;
  const mode_t before = ::umask(0);
  ASSERT_THAT(save_as(1, dir.path(), 1), Each(""));
  ::umask(before);
  struct stat info {};
  for (const char* name : {"/step1/manifest.json", "/step1/rank-00000.safetensors", "/latest"}) {
    ASSERT_EQ(::stat((dir.path() + name).c_str(), &info), 0) << name;
    EXPECT_EQ(info.st_mode & 0777, mode_t{0600}) << name;
  }
  ASSERT_EQ(::stat((dir.path() + "/step1").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, mode_t{0700});
}

TEST(Checkpoint, TheSameTagIsReplacedAtOnce) {
  const TempDir dir;
  ASSERT_THAT(save_as(3, dir.path(), 4), Each(""));
  ASSERT_THAT(save_as(1, dir.path(), 4), Each(""));
  EXPECT_FALSE(fs::exists(dir.path() + "/step4/rank-00002.safetensors"));
  expect_loads(dir.path(), 2, 4);
}

TEST(Checkpoint, NothingThere) {
  const TempDir dir;
  EXPECT_THAT(load_as(2, dir.path() + "/absent").steps, Each(-1));
  EXPECT_THAT(load_as(2, dir.path()).steps, Each(-1));
  EXPECT_THAT(load_as(2, dir.path(), "step9").errors, Each(HasSubstr("step9")));
  EXPECT_THAT(load_as(2, dir.path(), "../step9").errors, Each(HasSubstr("cannot be the tag")));
}

TEST(Checkpoint, DamageIsNamedAndPassedOverByAllRanks) {
  const TempDir dir;
  ASSERT_THAT(save_as(2, dir.path(), 1), Each(""));
  SeededRandom random(20261121);
  for (const std::string name : {"rank-00000.safetensors", "rank-00001.safetensors", "manifest.json"}) {
    for (int trial = 0; trial < 8; ++trial) {
      ASSERT_THAT(save_as(2, dir.path(), 2), Each(""));
      const std::string path = dir.path() + "/step2/" + name;
      const auto size = int64_t(fs::file_size(path));
      // Some in the header, some anywhere; at last a cut.
      const int64_t at = trial < 3 ? int64_t(random() % 400) : int64_t(random() % uint64_t(size));
      if (trial == 7) {
        fs::resize_file(path, uint64_t(at));
      } else {
        std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
        file.seekg(at);
        const char value = char(file.get() ^ (1 << (random() % 8)));
        file.seekp(at);
        file.put(value);
      }
      expect_loads(dir.path(), 3, 1);
      EXPECT_THAT(load_as(3, dir.path(), {}, /*strict=*/true).errors, Each(AllOf(HasSubstr("step2"), HasSubstr(name))));
      EXPECT_THAT(load_as(3, dir.path(), "step2").errors, Each(HasSubstr(name)));
    }
  }
}

TEST(Checkpoint, GarbageInTheHintIsIgnored) {
  const TempDir dir;
  ASSERT_THAT(save_as(2, dir.path(), 4), Each(""));  // is not taken for the newest
  ASSERT_THAT(save_as(2, dir.path(), 6), Each(""));
  for (const std::string& text : {std::string(), std::string("../../etc"), std::string("/etc"), std::string("step5"),
                                  std::string(1 << 20, 'x'), std::string("a\0b", 3)}) {
    fs::remove(dir.path() + "/latest");
    std::ofstream(dir.path() + "/latest", std::ios::binary) << text;
    expect_loads(dir.path(), 2, 6);
  }
  fs::remove(dir.path() + "/latest");
  fs::create_symlink("/etc/hostname", dir.path() + "/latest");
  expect_loads(dir.path(), 2, 6);
  fs::create_directory_symlink(dir.path() + "/step6", dir.path() + "/step7");
  expect_loads(dir.path(), 2, 6);
}

// The n-th system call of one rank fails, for every n, once or from then on: all ranks say so, and what was there
// before loads; or the save had succeeded already.
TEST(Checkpoint, EveryFailingCall) {
  const TempDir dir;
  ASSERT_THAT(save_as(2, dir.path(), 1), Each(""));
  for (const bool sticky : {false, true}) {
    for (const int victim : {0, 1}) {
      for (int64_t n = 1;; ++n) {
        ASSERT_LT(n, 1000);
        FaultyIo faulty(posix_io());
        faulty.fail({.op = std::nullopt, .nth = n, .error = ENOSPC, .sticky = sticky});
        const auto errors =
            save_as(2, dir.path(), 2, 0, [&](int rank) -> Io& { return rank == victim ? faulty : posix_io(); });
        const std::string which = concat("call ", n, " of rank ", victim, sticky ? ", and all later ones" : "");
        const Loaded loaded = load_as(2, dir.path());
        EXPECT_THAT(loaded.errors, Each("")) << which;
        EXPECT_EQ(loaded.wrong, 0) << which;
        EXPECT_EQ(loaded.steps[0], loaded.steps[1]) << which;
        EXPECT_EQ(errors[0], errors[1]) << which;
        EXPECT_EQ(faulty.open_files(), 0) << which;
        if (errors[0].empty()) {
          EXPECT_EQ(loaded.steps[0], 2) << which;
        } else {
          EXPECT_THAT(errors[0], AllOf(HasSubstr(concat("rank ", victim)), HasSubstr(std::strerror(ENOSPC)))) << which;
          EXPECT_TRUE(loaded.steps[0] == 1 || loaded.steps[0] == 2) << which;
        }
        fs::remove_all(dir.path() + "/step2");
        if (!faulty.has_failed()) break;
      }
    }
  }
}

// What a power failure may undo is exactly what was not made durable.
TEST(Checkpoint, NothingIsRenamedBeforeItIsDurable) {
  const TempDir dir;
  FaultyIo recording(posix_io());
  for (const int64_t step : {1, 2, 3, 3})
    ASSERT_THAT(save_as(3, dir.path(), step, /*keep=*/2, [&](int) -> Io& { return recording; }), Each(""));
  EXPECT_THAT(recording.early_renames(), ::testing::IsEmpty());
  EXPECT_THAT(recording.not_durable(), ::testing::IsEmpty());
}

TEST(AsyncSaver, TrainingMayChangeTheStateAtOnce) {
  const TempDir dir;
  const auto errors = testing::run_local_world(3, [&](Comm& comm) {
    Ledger ledger;
    AsyncSaver saver(comm, posix_io(), ledger);
    for (const int64_t step : {1, 2, 3}) {
      Share share(kSmall, comm.rank(), 3, step);
      saver.start(request_for(dir.path(), step, share, comm.rank()),
                  [](void* to, const void* from, int64_t bytes) { std::memcpy(to, from, size_t(bytes)); });
      for (auto& values : share.memory) std::fill(values.begin(), values.end(), -1.0F);
    }
    saver.wait();
    EXPECT_FALSE(saver.busy());
  });
  EXPECT_THAT(errors, Each(""));
  expect_loads(dir.path(), 2, 3);
  EXPECT_EQ(load_as(2, dir.path(), "step1").wrong, 0);
}

TEST(AsyncSaver, WhatIsNotCopiedYetIsNotWritten) {
  const TempDir dir;
  const auto errors = testing::run_local_world(3, [&](Comm& comm) {
    Ledger ledger;
    FaultyIo io(posix_io());
    AsyncSaver saver(comm, io, ledger);
    const Share share(kSmall, comm.rank(), 3, 1);
    saver.start(request_for(dir.path(), 1, share, comm.rank()), [&](void* to, const void* from, int64_t bytes) {
      EXPECT_TRUE(testing::calls_within(std::chrono::seconds(10), io, IoOp::kAllocate));
      std::this_thread::sleep_for(std::chrono::milliseconds(20));  // enough to write what is not there yet
      std::memcpy(to, from, size_t(bytes));
    });
    saver.wait();
  });
  EXPECT_THAT(errors, Each(""));
  expect_loads(dir.path(), 2, 1);
}

TEST(AsyncSaver, AnErrorComesOutOnceOnEveryRank) {
  const TempDir dir;
  FaultyIo faulty(posix_io());
  faulty.fail({.op = std::nullopt, .nth = 5, .error = EIO, .sticky = true});
  const auto errors = testing::run_local_world(2, [&](Comm& comm) {
    Ledger ledger;
    AsyncSaver saver(comm, comm.rank() == 1 ? faulty : posix_io(), ledger);
    const Share share(kSmall, comm.rank(), 2, 1);
    const auto copy = [](void* to, const void* from, int64_t bytes) { std::memcpy(to, from, size_t(bytes)); };
    saver.start(request_for(dir.path(), 1, share, comm.rank()), copy);
    EXPECT_THROW(saver.wait(), IoError);
    EXPECT_FALSE(saver.failed());
    saver.wait();
  });
  EXPECT_THAT(errors, Each(""));
  EXPECT_THAT(load_as(2, dir.path()).steps, Each(-1));
}

}  // namespace
}  // namespace zeroshard
