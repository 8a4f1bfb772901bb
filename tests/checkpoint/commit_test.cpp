#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "base/format.h"
#include "checkpoint/load.h"
#include "checkpoint/save.h"
#include "checkpoint/store.h"
#include "checkpoint/support.h"
#include "file/support.h"
#include "support/comm_world.h"
#include "support/faulty_io.h"

namespace zeroshard {
namespace {

namespace fs = std::filesystem;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::TemporaryDirectory;

using testing::load;
using testing::names_in;
using testing::save;

TEST(Commit, TheHintFollowsTheCheckpointAndDeletionTheHint) {
  const TemporaryDirectory root;
  ASSERT_THAT(save({root.path(), "old", 1}), Each(""));
  FaultyIo recording(posix_io());
  ASSERT_THAT(save({root.path(), "new", 2, /*keep=*/1}, recording), Each(""));
  std::vector<std::string> events;  // renames in the root, and when it is made durable
  for (const IoCall& call : recording.log()) {
    if (call.op == IoOp::kSync && call.path == root.path()) events.emplace_back("sync");
    if (call.op != IoOp::kRename || fs::path(call.path).parent_path() != root.path()) continue;
    const std::string name = fs::path(call.path).filename();
    events.push_back(name.starts_with(".trash-") ? ".trash-" : name);
  }
  EXPECT_THAT(events, ElementsAre("sync", "new", "sync", "latest", "sync", ".trash-", "sync"));
}

TEST(Commit, ACheckpointThatIsNotTheNewestIsDurableToo) {
  const TemporaryDirectory root;
  ASSERT_THAT(save({root.path(), "a", 1}), Each(""));
  FaultyIo recording(posix_io());
  ASSERT_THAT(save({root.path(), "b", 2, 0, /*latest=*/false}, recording), Each(""));
  EXPECT_THAT(recording.not_durable(), IsEmpty());
  EXPECT_THAT(recording.early_renames(), IsEmpty());
  EXPECT_EQ(load({root.path()}), "1");
  EXPECT_EQ(testing::contents_of(root / "latest"), "a");
}

TEST(Commit, AFailedSaveLeavesNoTrace) {
  const TemporaryDirectory root;
  ASSERT_THAT(save({root.path(), "a", 1}), Each(""));
  for (const int victim : {0, 1}) {
    FaultyIo faulty(posix_io());
    faulty.fail({IoOp::kAllocate, 1, ENOSPC, true});
    const std::string who = concat("rank ", victim);
    EXPECT_THAT(save({root.path(), "b", 2}, faulty, victim), Each(HasSubstr(who)));
    EXPECT_THAT(names_in(root.path()), ElementsAre("a", "latest"));
  }
}

// Whatever call fails while a checkpoint takes the place of another of its tag, one of them is there.
TEST(Commit, ReplacingATagNeverLeavesNeither) {
  for (int64_t n = 1;; ++n) {
    SCOPED_TRACE(n);
    ASSERT_LT(n, 1000);
    const TemporaryDirectory root;
    ASSERT_THAT(save({root.path(), "same", 1}), Each(""));
    FaultyIo faulty(posix_io());
    faulty.fail({.op = std::nullopt, .nth = n, .error = EIO, .sticky = true});
    const auto errors = save({root.path(), "same", 2}, faulty);
    const std::string found = load({root.path()});
    EXPECT_TRUE(found == "2" || (found == "1" && !errors[0].empty())) << found << "; " << errors[0];
    if (!faulty.has_failed()) break;
  }
}

TEST(Commit, OnlyWhatDeadProcessesOfThisHostLeftIsSwept) {
  const TemporaryDirectory root;
  const pid_t dead = ::fork();
  if (dead == 0) ::_exit(0);
  ASSERT_EQ(::waitpid(dead, nullptr, 0), dead);
  const std::string own = private_name(".tmp-", "t"), process = concat(".", ::getpid(), "-");
  const size_t at = own.rfind(process);
  ASSERT_NE(at, std::string::npos);
  const auto of = [&](const std::string& name, pid_t pid) { return concat(name, ".", pid, "-0123.7"); };
  const std::string host = own.substr(0, at), trash = ".trash-" + host.substr(5);
  const std::vector<std::string> kept = {own, of(host, ::getppid()), of(host + "x", dead), ".tmp-unknown"};
  for (const std::string& name : kept) fs::create_directory(root / name);
  for (const std::string& name : {of(host, dead), of(trash, dead)}) {
    fs::create_directories(root / name + "/deep");
    testing::put(root / name + "/deep/file", "x");
  }
  ASSERT_THAT(save({root.path(), "a", 1}), Each(""));
  std::vector<std::string> expected = {"a", "latest"};
  expected.insert(expected.end(), kept.begin(), kept.end());
  EXPECT_THAT(names_in(root.path()), ::testing::UnorderedElementsAreArray(expected));
}

// A disk that is full of what dead processes left is not full for good.
TEST(Commit, WhatDeadProcessesLeftGoesBeforeAnythingIsWritten) {
  const TemporaryDirectory root;
  const pid_t dead = ::fork();
  if (dead == 0) ::_exit(0);
  ASSERT_EQ(::waitpid(dead, nullptr, 0), dead);
  const std::string own = private_name(".tmp-", "t");
  fs::create_directory(root / concat(own.substr(0, own.rfind(concat(".", ::getpid(), "-"))), ".", dead, "-0123.7"));
  FaultyIo full(posix_io());
  full.fail({IoOp::kAllocate, 1, ENOSPC, true});
  EXPECT_THAT(save({root.path(), "a", 1}, full), Each(HasSubstr("rank 0")));
  EXPECT_THAT(names_in(root.path()), IsEmpty());
}

TEST(Load, AFileThatHasGrownIsDamaged) {
  const TemporaryDirectory root;
  ASSERT_THAT(save({root.path(), "a", 1}), Each(""));
  ASSERT_THAT(save({root.path(), "b", 2}), Each(""));
  std::ofstream(root / "b/rank-00001.safetensors", std::ios::app) << 'x';
  EXPECT_EQ(load({root.path()}), "1");
}

}  // namespace
}  // namespace zeroshard
