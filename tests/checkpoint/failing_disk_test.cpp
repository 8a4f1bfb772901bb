#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <system_error>

#include "base/format.h"
#include "checkpoint/versions.h"
#include "support/around_io.h"
#include "support/faulty_io.h"
#include "support/model_disk.h"
#include "support/release.h"

namespace zeroshard {
namespace {

using ::testing::AllOf;
using testing::DiskTree;
using ::testing::Each;
using ::testing::HasSubstr;
using testing::kVersionsRoot;
using testing::load_version;
using testing::ModelDisk;
using testing::QuietLog;
using testing::save_version;
using testing::Version;

const Version kOld{.number = 1, .tag = "a", .step = 1};
// Beside the old one, which is then deleted; and in its place.
const std::vector<Version> kNew = {{.number = 2, .tag = "b", .step = 2, .keep = 1},
                                   {.number = 3, .tag = "a", .step = 1}};

DiskTree disk_with_old(int world_size) {
  ModelDisk disk;
  // Again and again, as in a run: what is newest does not depend on the step alone.
  for (int i = 0; i < 3; ++i) EXPECT_THAT(save_version(kOld, world_size, [&](int) -> Io& { return disk; }), Each(""));
  return disk.tree();
}

// Threads that wait for each other take long on a machine that has other work.
std::vector<int> worlds() {
  return testing::release() ? std::vector{1, 2, 3} : std::vector{1, 2};
}

std::string reason_of(int error) {
  return std::generic_category().message(error);
}

// One save whose rank `victim` has a failing disk.
struct FailingSave {
  int world_size = 1, victim = 0;
  const Version& version;
  IoFault fault;

  std::string text() const {
    return concat("call ", fault.nth, " of rank ", victim, " of ", world_size, fault.sticky ? " and all later: " : ": ",
                  reason_of(fault.error), "; saving ", version.tag);
  }
};

// Whether the fault was met. What it may do: all ranks tell the same, the rank, the path and the reason among it, and
// the old or the new checkpoint is there, whole; or it does not matter. The next save succeeds.
bool run(const FailingSave& save, const DiskTree& before) {
  ModelDisk disk(before);
  FaultyIo faulty(disk);
  faulty.fail(save.fault);
  const auto io_of = [&](int rank) -> Io& { return rank == save.victim ? static_cast<Io&>(faulty) : disk; };
  const auto errors = save_version(save.version, save.world_size, io_of);
  EXPECT_THAT(errors, Each(errors[0])) << save.text();
  const std::string found = load_version(disk), written = std::to_string(save.version.number);
  if (errors[0].empty()) {
    EXPECT_EQ(found, written) << save.text();
  } else {
    EXPECT_TRUE(found == "1" || found == written) << save.text() << ": " << found;
    // That something is not there may mean more than that.
    if (save.fault.error != ENOENT) {
      EXPECT_THAT(errors[0], AllOf(HasSubstr(kVersionsRoot), HasSubstr(reason_of(save.fault.error)))) << save.text();
    }
    if (save.world_size > 1) {
      EXPECT_THAT(errors[0], ::testing::StartsWith(concat("rank ", save.victim, ": "))) << save.text();
    }
  }
  EXPECT_EQ(disk.open_files(), 0U) << save.text();
  const int ranks = testing::release() ? save.world_size : 1;
  const auto again = save_version(save.version, ranks, [&](int) -> Io& { return disk; });
  EXPECT_THAT(again, Each("")) << save.text();
  EXPECT_EQ(load_version(disk), written) << save.text();
  return faulty.has_failed();
}

// All calls of a save, one after the other.
void run_all(int world_size, int victim, const Version& version, const std::vector<int>& errors, bool sticky) {
  const DiskTree before = disk_with_old(world_size);
  for (int64_t n = 1;; ++n) {
    ASSERT_LT(n, 1000);
    if (::testing::Test::HasFailure()) return;
    bool met = false;
    // A sample has one error for each call: another one for the next.
    const size_t count = testing::release() ? errors.size() : 1;
    for (size_t i = 0; i < count; ++i) {
      const int error = errors[(size_t(n) + size_t(victim) + i) % errors.size()];
      met = run({world_size, victim, version, {std::nullopt, n, error, sticky}}, before);
    }
    if (!met) return;
  }
}

TEST(FailingDisk, AnyErrorOfAnyCallOfAnyRank) {
  const QuietLog quiet;
  for (const int world_size : worlds())
    for (int victim = 0; victim < world_size; ++victim)
      for (const Version& version : kNew)
        for (const bool sticky : {false, true})
          run_all(world_size, victim, version, {EIO, EDQUOT, EROFS, EACCES, EMFILE, ENOENT, ENOSPC}, sticky);
}

// A signal interrupts one call of a save, any one: nobody notices.
TEST(FailingDisk, AnInterruptedCallIsRepeated) {
  const QuietLog quiet;
  for (const int world_size : worlds()) {
    const DiskTree before = disk_with_old(world_size);
    for (int victim = 0; victim < world_size; ++victim) {
      for (int64_t n = 1;; ++n) {
        ASSERT_LT(n, 1000);
        ModelDisk disk(before);
        FaultyIo faulty(disk);
        faulty.fail({.op = std::nullopt, .nth = n, .error = EINTR});
        const auto errors = save_version(kNew[size_t(n) % 2], world_size, [&](int rank) -> Io& {
          return rank == victim ? static_cast<Io&>(faulty) : disk;
        });
        ASSERT_THAT(errors, Each("")) << "call " << n << " of rank " << victim;
        ASSERT_EQ(load_version(disk), std::to_string(kNew[size_t(n) % 2].number)) << "call " << n;
        if (!faulty.has_failed()) break;
      }
    }
  }
}

// A write that stops early, once.
template <typename Around>
class ShortWrite final : public testing::AroundIo<Around> {
 public:
  ShortWrite(Io& io, Around around, int64_t nth, bool one_byte)
      : testing::AroundIo<Around>(io, around), nth_(nth), one_byte_(one_byte) {}

  int64_t pwrite(int fd, const void* data, size_t bytes, int64_t offset) override {
    if (++writes_ == nth_ && bytes > 1) bytes = one_byte_ ? 1 : bytes / 2;
    return testing::AroundIo<Around>::pwrite(fd, data, bytes, offset);
  }
  int64_t writes() const { return writes_; }

 private:
  std::atomic<int64_t> writes_ = 0;
  const int64_t nth_;
  const bool one_byte_;
};

TEST(FailingDisk, ShortWritesAreContinued) {
  const QuietLog quiet;
  const auto around = [](IoOp, const auto& call) { return call(); };
  for (const int world_size : worlds()) {
    const DiskTree before = disk_with_old(world_size);
    for (int victim = 0; victim < world_size; ++victim) {
      for (const bool one_byte : {false, true}) {
        for (int64_t n = 1;; ++n) {
          ASSERT_LT(n, 100);
          ModelDisk disk(before);
          ShortWrite io(disk, around, n, one_byte);
          const auto errors = save_version(kNew[size_t(n) % 2], world_size, [&](int rank) -> Io& {
            return rank == victim ? static_cast<Io&>(io) : disk;
          });
          ASSERT_THAT(errors, Each("")) << "write " << n << " of rank " << victim;
          ASSERT_EQ(load_version(disk), std::to_string(kNew[size_t(n) % 2].number)) << "write " << n;
          if (io.writes() < n) break;
        }
      }
    }
    for (const int64_t bytes : {1, 700}) {  // and every one
      ModelDisk disk(before);
      FaultyIo io(disk);
      io.limit_transfers(bytes);
      ASSERT_THAT(save_version(kNew[0], world_size, [&](int) -> Io& { return io; }), Each("")) << bytes;
      ASSERT_EQ(load_version(disk), "2") << bytes;
    }
  }
}

}  // namespace
}  // namespace zeroshard
