#include "checkpoint/store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "base/format.h"
#include "checkpoint/support.h"
#include "file/support.h"
#include "support/faulty_io.h"
#include "zeroshard/checkpoint_files.h"
#include "zeroshard/error.h"

namespace zeroshard {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::load;
using testing::names_in;
using testing::put;
using testing::save;
using testing::TemporaryDirectory;

void flip_first_byte(const std::string& path) {
  std::string contents = testing::contents_of(path);
  ASSERT_FALSE(contents.empty()) << path;
  contents[0] = char(contents[0] ^ 1);
  put(path, contents);
}

// What others may have under the name of a tag: it stays as it is, and nothing is written beside it.
TEST(Commit, ReplacesNothingButCheckpoints) {
  const std::vector<std::pair<std::string, std::function<void(const std::string&)>>> others = {
      {"a directory", [](const std::string& path) { fs::create_directory(path), put(path + "/thesis.tex", "x"); }},
      {"an empty directory", [](const std::string& path) { fs::create_directory(path); }},
      {"a file", [](const std::string& path) { put(path, "x"); }},
      {"a link", [](const std::string& path) { fs::create_directory_symlink("elsewhere", path); }},
      {"a checkpoint of DeepSpeed",
       [](const std::string& path) { fs::create_directory(path), put(path + "/mp_rank_00_model_states.pt", "x"); }},
      {"somebody else's manifest",
       [](const std::string& path) { fs::create_directory(path), put(path + "/manifest.json", R"({"files": []})"); }},
  };
  for (const auto& [what, make] : others) {
    SCOPED_TRACE(what);
    const TemporaryDirectory root;
    fs::create_directory(root / "elsewhere");
    make(root / "mine");
    FaultyIo recording(posix_io());
    EXPECT_THAT(save({root.path(), "mine", 2}, recording),
                Each(AllOf(HasSubstr(root / "mine"), HasSubstr("another tag"))));
    EXPECT_EQ(recording.calls(IoOp::kMkdir) + recording.calls(IoOp::kCreate), 0);
    EXPECT_THAT(names_in(root.path()), ElementsAre("elsewhere", "mine"));
    EXPECT_THAT(names_in(root / "elsewhere"), IsEmpty());
    if (what != "a directory") continue;
    EXPECT_EQ(testing::contents_of(root / "mine/thesis.tex"), "x");
  }
}

TEST(Commit, RefusesAgainWhatCameWhileItWasWritten) {
  const TemporaryDirectory root;
  Directory directory = Directory::create(posix_io(), root.path());
  directory.create_directory("temporary");
  fs::create_directory(root / "mine");
  put(root / "mine/thesis.tex", "x");
  EXPECT_THROW(commit(directory, "temporary", "mine"), ValueError);
  EXPECT_EQ(testing::contents_of(root / "mine/thesis.tex"), "x");
}

TEST(Commit, ReplacesADamagedCheckpoint) {
  const TemporaryDirectory root;
  ASSERT_THAT(save({root.path(), "a", 1}), Each(""));
  flip_first_byte(root / "a/manifest.json");
  ASSERT_THAT(save({root.path(), "a", 2}), Each(""));
  EXPECT_EQ(load({root.path()}), "2");
}

TEST(Commit, TheNameOfTheHintIsNoTag) {
  const TemporaryDirectory root;
  EXPECT_THAT(save({root.path(), "latest", 1}), Each(HasSubstr("'latest' cannot be the tag")));
  EXPECT_THAT(names_in(root.path()), IsEmpty());
}

// The new checkpoint is durable by then.
TEST(Commit, AReplacedCheckpointThatCannotBeDeletedFailsNothing) {
  const TemporaryDirectory root;
  ASSERT_THAT(save({root.path(), "a", 1}), Each(""));
  FaultyIo faulty(posix_io());
  faulty.fail({IoOp::kUnlink, /*nth=*/3, EACCES, /*sticky=*/true});  // the first two: the ranks' tables
  EXPECT_THAT(save({root.path(), "a", 2}, faulty), Each(""));
  EXPECT_TRUE(faulty.has_failed());
  EXPECT_EQ(load({root.path()}), "2");
  EXPECT_EQ(testing::contents_of(root / "latest"), "a");
}

// In a restarted container every process has the number that its predecessor had.
TEST(Commit, WhatAnEarlierProcessOfTheSameNumberLeftIsSwept) {
  const TemporaryDirectory root;
  const std::string own = private_name(".tmp-", "t"), process = concat(".", ::getpid());
  const size_t end = own.rfind('.'), begin = own.rfind(process, end - 1);
  ASSERT_NE(begin, std::string::npos);
  const std::string earlier = own.substr(0, begin) + process, number = own.substr(end);
  const std::string other = earlier + "-0123456789abcdef" + number, old = earlier + number;
  for (const std::string& name : {other, old, own}) fs::create_directory(root / name);
  ASSERT_THAT(save({root.path(), "a", 1}), Each(""));
  EXPECT_THAT(names_in(root.path()), ElementsAre(own, "a", "latest"));
}

TEST(Retain, ARunThatHasGoneBackKeepsWhatItSaves) {
  const TemporaryDirectory root;
  for (const int64_t step : {10, 20, 30, 40, 50})
    ASSERT_THAT(save({root.path(), concat("s", step), step, /*keep=*/5}), Each(""));
  // Back at 20: what was saved after it is another branch.
  ASSERT_THAT(save({root.path(), "s25", 25, /*keep=*/2}), Each(""));
  EXPECT_THAT(names_in(root.path()), ElementsAre("latest", "s20", "s25", "s30", "s40", "s50"));
  ASSERT_THAT(save({root.path(), "s35", 35, /*keep=*/2}), Each(""));
  EXPECT_THAT(names_in(root.path()), ElementsAre("latest", "s25", "s35", "s40", "s50"));
  ASSERT_THAT(save({root.path(), "s60", 60, /*keep=*/2}), Each(""));
  EXPECT_THAT(names_in(root.path()), ElementsAre("latest", "s35", "s60"));
}

// Otherwise nothing would be left to go on from.
TEST(Retain, OneThatDoesNotCountAsTheNewestStandsInForNoOther) {
  const TemporaryDirectory root;
  ASSERT_THAT(save({root.path(), "s10", 10, /*keep=*/1}), Each(""));
  for (const int64_t step : {11, 12})
    ASSERT_THAT(save({root.path(), concat("best", step), step, /*keep=*/1, /*latest=*/false}), Each(""));
  EXPECT_THAT(names_in(root.path()), ElementsAre("best11", "best12", "latest", "s10"));
  ASSERT_THAT(save({root.path(), "s20", 20, /*keep=*/1}), Each(""));
  EXPECT_THAT(names_in(root.path()), ElementsAre("best11", "best12", "latest", "s20"));
}

// A process may die between a commit and what it deletes then.
TEST(Retain, WhatADeathLeftUndeletedGoesBeforeTheNextSave) {
  const TemporaryDirectory root;
  for (const int64_t step : {10, 20, 30, 90}) ASSERT_THAT(save({root.path(), concat("s", step), step}), Each(""));
  FaultyIo full(posix_io());
  full.fail({IoOp::kAllocate, 1, ENOSPC, true});
  EXPECT_THAT(save({root.path(), "s40", 40, /*keep=*/2}, full), Each(HasSubstr("rank 0")));
  EXPECT_THAT(names_in(root.path()), ElementsAre("latest", "s20", "s30", "s90"));
  EXPECT_THAT(save({root.path(), "s40", 40, /*keep=*/2}), Each(""));
  EXPECT_THAT(names_in(root.path()), ElementsAre("latest", "s30", "s40", "s90"));
}

// Of a directory: what a load would take, and what is wrong beside it.
TEST(CheckpointFiles, TheNewestOfADirectoryIsThatOfALoad) {
  const TemporaryDirectory root;
  for (const int64_t step : {10, 20}) ASSERT_THAT(save({root.path(), concat("s", step), step}), Each(""));
  ASSERT_THAT(save({root.path(), "best", 25, /*keep=*/0, /*latest=*/false}), Each(""));
  EXPECT_EQ(inspect_checkpoint(root.path()).summary.tag, "s20");
  EXPECT_THAT(verify_checkpoint(root.path()), IsEmpty());
  put(root / "s20/manifest.json", "{}");
  EXPECT_EQ(inspect_checkpoint(root.path()).summary.tag, "s10");
  EXPECT_THAT(verify_checkpoint(root.path()), ElementsAre(HasSubstr("'s20': ")));
}

TEST(ListStore, WhatCannotBeReadIsNamed) {
  const TemporaryDirectory root;
  ASSERT_THAT(save({root.path(), "a", 1}), Each(""));
  ASSERT_THAT(save({root.path(), "b", 2}), Each(""));
  put(root / "file", "x");
  fs::create_directory(root / "plain");
  fs::create_directory_symlink("a", root / "link");
  FaultyIo faulty(posix_io());
  const Directory directory = Directory::open(faulty, root.path());
  EXPECT_THAT(list_store(directory).bad, IsEmpty());
  for (const IoOp op : {IoOp::kOpenDir, IoOp::kStat, IoOp::kOpen, IoOp::kRead}) {
    faulty.fail({op, 1, EMFILE, /*sticky=*/false});
    const StoreListing listing = list_store(directory);
    ASSERT_EQ(listing.bad.size(), 1U);
    EXPECT_EQ(listing.bad[0].first, "a");
    EXPECT_THAT(listing.bad[0].second, HasSubstr("Too many open files"));
    ASSERT_EQ(listing.committed.size(), 1U);
    EXPECT_EQ(listing.committed[0].tag, "b");
  }
}

TEST(Load, NothingButDamagedManifestsIsAnError) {
  const TemporaryDirectory root;
  for (const int64_t step : {1, 2}) {
    ASSERT_THAT(save({root.path(), concat("s", step), step}), Each(""));
    flip_first_byte(root / concat("s", step, "/manifest.json"));
  }
  EXPECT_THAT(load({root.path()}), AllOf(HasSubstr(root.path()), HasSubstr("\n  s1: "), HasSubstr("\n  s2: ")));
  ASSERT_THAT(save({root.path(), "hidden", 3, 0, /*latest=*/false}), Each(""));
  EXPECT_THAT(load({root.path()}), HasSubstr("\n  s2: "));
  ASSERT_THAT(save({root.path(), "s4", 4}), Each(""));
  EXPECT_EQ(load({root.path()}), "4");
}

}  // namespace
}  // namespace zeroshard
