#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "base/format.h"
#include "checkpoint/store.h"
#include "checkpoint/support.h"
#include "file/hash.h"
#include "file/support.h"
#include "support/faulty_io.h"

// Which of the checkpoints in a directory is the newest: the one that was committed last, whatever its step.
namespace zeroshard {
namespace {

namespace fs = std::filesystem;
using testing::change_last_byte;
using testing::contents_of;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::load;
using testing::names_in;
using testing::put;
using testing::save;
using testing::TemporaryDirectory;

constexpr char kSecondLine[] = " \"sequence\": ";

Directory open(const std::string& root) {
  return Directory::open(posix_io(), root);
}

std::vector<std::string> tags_in_order(const std::string& root) {
  std::vector<std::string> tags;
  for (const FoundCheckpoint& found : list_store(open(root)).committed) tags.push_back(found.tag);
  return tags;
}

void save_steps(const std::string& root, const std::vector<int64_t>& steps, int keep = 0) {
  for (const int64_t step : steps) ASSERT_THAT(save({root, concat("s", step), step, keep}), Each(""));
}

// Puts `line` in the place of the second line of a manifest, under a checksum that is right.
void change_sequence(const std::string& path, const std::string& line) {
  const std::string text = contents_of(path);
  const size_t second = text.find('\n') + 1, third = text.find('\n', second) + 1;
  ASSERT_EQ(text.compare(second, sizeof kSecondLine - 1, kSecondLine), 0) << text.substr(0, 80);
  const std::string rest = line + text.substr(third);
  std::string hash(16, '0');
  std::snprintf(hash.data(), hash.size() + 1, "%016llx",
                static_cast<unsigned long long>(hash_bytes(rest.data(), int64_t(rest.size()))));
  put(path, concat(text.substr(0, text.find(": \"") + 3), hash, "\",\n", rest));
}

TEST(Sequence, TheNewestCommitIsLoaded) {
  const TemporaryDirectory root;
  save_steps(root.path(), {10, 20, 30, 25});
  EXPECT_EQ(load({root.path()}), "25");
  EXPECT_EQ(contents_of(root / "latest"), "s25");
  EXPECT_EQ(read_manifest(open(root.path()), "s25").sequence, 4);
  EXPECT_THAT(tags_in_order(root.path()), ElementsAre("s25", "s20", "s10", "s30"));
  ASSERT_THAT(save({root.path(), "s10", 12}), Each(""));  // in the place of another
  EXPECT_EQ(load({root.path()}), "12");
  ASSERT_THAT(save({root.path(), "hidden", 13, 0, /*latest=*/false}), Each(""));
  EXPECT_EQ(load({root.path()}), "12");
  EXPECT_EQ(read_manifest(open(root.path()), "hidden").sequence, 6);
}

TEST(Sequence, ManifestsWithoutOneAreOlderAndGoByTheirSteps) {
  const TemporaryDirectory root;
  save_steps(root.path(), {10, 30, 20});
  for (const std::string tag : {"s10", "s20", "s30"}) change_sequence(root / (tag + "/manifest.json"), "");
  EXPECT_EQ(read_manifest(open(root.path()), "s20").sequence, 0);
  EXPECT_THAT(tags_in_order(root.path()), ElementsAre("s30", "s20", "s10"));
  EXPECT_EQ(load({root.path()}), "30");
  save_steps(root.path(), {25});
  EXPECT_THAT(tags_in_order(root.path()), ElementsAre("s25", "s20", "s10", "s30"));
  EXPECT_EQ(load({root.path()}), "25");
}

TEST(Sequence, DamageLeadsBackAndNotToALeftBranch) {
  const TemporaryDirectory root;
  save_steps(root.path(), {10, 20, 30, 40, 25});
  for (const std::string expected : {"25", "20", "10", "40", "30"}) {
    EXPECT_EQ(load({root.path()}), expected);
    change_last_byte(root / ("s" + expected + "/rank-00000.safetensors"));
  }
  EXPECT_THAT(load({root.path()}), HasSubstr("no checkpoint in"));
}

// A run that goes on where another has gone back deletes nothing but what is older than the last commit, until it has
// one of its own.
TEST(Sequence, NothingGoesBeforeItsTime) {
  const TemporaryDirectory root;
  save_steps(root.path(), {10, 20, 50});
  save_steps(root.path(), {25, 35}, /*keep=*/2);
  EXPECT_THAT(names_in(root.path()), ElementsAre("latest", "s25", "s35", "s50"));
  FaultyIo full(posix_io());
  full.fail({IoOp::kAllocate, 1, ENOSPC, true});
  EXPECT_THAT(save({root.path(), "s60", 60, /*keep=*/2}, full), Each(HasSubstr("rank 0")));
  EXPECT_THAT(names_in(root.path()), ElementsAre("latest", "s25", "s35", "s50"));
  save_steps(root.path(), {60}, /*keep=*/2);
  EXPECT_THAT(names_in(root.path()), ElementsAre("latest", "s35", "s60"));
}

TEST(Sequence, WhatCannotBeReadDoesNotCount) {
  const TemporaryDirectory root;
  Directory directory = Directory::create(posix_io(), root.path());
  EXPECT_EQ(next_sequence(directory), 1);
  save_steps(root.path(), {10, 20});
  put(root / "file", "x");
  fs::create_directory(root / "plain");
  fs::create_directory_symlink("s20", root / "link");
  fs::create_directories(root / "others");
  put(root / "others/manifest.json", "{}");
  EXPECT_EQ(next_sequence(directory), 3);
  FaultyIo faulty(posix_io());
  faulty.fail({IoOp::kRead, /*nth=*/1, EIO, /*sticky=*/true});
  EXPECT_EQ(next_sequence(Directory::open(faulty, root.path())), 1);
  EXPECT_TRUE(faulty.has_failed());
}

TEST(Sequence, TheLargestNumberIsNotPassed) {
  const TemporaryDirectory root;
  save_steps(root.path(), {10, 20});
  change_sequence(root / "s10/manifest.json", concat(kSecondLine, INT64_MAX, ",\n"));
  EXPECT_EQ(load({root.path()}), "10");
  EXPECT_EQ(next_sequence(open(root.path())), INT64_MAX);
  save_steps(root.path(), {30});
  EXPECT_EQ(load({root.path()}), "30");
  for (const std::string wrong : {"-1", "1.5", "9223372036854775808", "true", "\"1\""}) {
    change_sequence(root / "s10/manifest.json", concat(kSecondLine, wrong, ",\n"));
    EXPECT_THROW(read_manifest(open(root.path()), "s10"), ValueError) << wrong;
  }
}

TEST(Sequence, IsFoundInTheBeginningOfAManifest) {
  Manifest manifest;
  manifest.rank_states = {"{}"};
  for (const int64_t sequence : {int64_t{0}, int64_t{7}, int64_t{1234567}, INT64_MAX}) {
    manifest.sequence = sequence;
    const std::string text = to_text(manifest);
    EXPECT_EQ(parse_manifest(text, "m").sequence, sequence);
    EXPECT_EQ(peek_sequence(std::string_view(text).substr(0, size_t(kSequenceEnd))), sequence);
    for (size_t size = 0; size <= size_t(kSequenceEnd); ++size) {  // never a part of a number
      const int64_t found = peek_sequence(std::string_view(text).substr(0, size));
      EXPECT_TRUE(found == 0 || found == sequence) << size;
    }
  }
}

}  // namespace
}  // namespace zeroshard
