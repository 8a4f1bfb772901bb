#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <set>
#include <thread>

#include "base/format.h"
#include "checkpoint/store.h"
#include "checkpoint/support.h"
#include "file/support.h"
#include "support/faulty_io.h"
#include "zeroshard/checkpoint_files.h"
#include "zeroshard/error.h"

// What loads, strict and not, lists and checks say of checkpoints that cannot be used, and of none.
namespace zeroshard {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using testing::change_last_byte;
using testing::contents_of;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::put;
using testing::save;
using testing::TemporaryDirectory;

struct Outcome {
  std::string found;  // the tag; "nothing", or what an IoError says
  std::string log;
};

// On both of two ranks.
Outcome load(const std::string& root, bool strict = false) {
  std::vector<std::string> found(2);
  ::testing::internal::CaptureStderr();
  const auto errors = testing::run_local_world(2, [&](Comm& comm) {
    const auto none = [](const Manifest&, const TensorIndex&) { return std::vector<StateSlice>(); };
    try {
      const auto loaded = load_checkpoint({root, {}, strict, none}, comm, posix_io());
      found[size_t(comm.rank())] = loaded ? loaded->tag : "nothing";
    } catch (const IoError& error) {
      found[size_t(comm.rank())] = error.what();
    }
  });
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(errors, Each(""));
  EXPECT_EQ(found[0], found[1]);
  return {found[0], log};
}

std::string tag_of(int64_t step) {
  return concat("s", step);
}

void save_numbered(const std::string& root, const std::vector<int64_t>& steps) {
  for (const int64_t step : steps) ASSERT_THAT(save({root, tag_of(step), step}), Each(""));
}

TEST(Unusable, NothingThereIsSaidAndAnErrorWhenStrict) {
  const TemporaryDirectory root;
  fs::create_directory(root / "empty");
  save_numbered(root / "run", {1});
  ASSERT_THAT(save({root / "hidden", "best", 1, 0, /*latest=*/false}), Each(""));
  save_numbered(root / "gone", {1});
  fs::remove_all(root / "gone/s1");
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"absent", "there is no directory " + root / "absent"},
      {"empty", "there is no checkpoint in " + root / "empty"},
      {"run/s1", concat(root / "run/s1", " is itself a checkpoint: pass ", root / "run", " and the tag 's1'")},
      {"run/s1/", concat(root / "run/s1", " is itself a checkpoint: pass ", root / "run", " and the tag 's1'")},
      {"hidden", concat(root / "hidden", " are loaded by their tags alone")},
      {"gone", "there is no checkpoint in " + root / "gone"},
  };
  for (const auto& [name, said] : cases) {
    SCOPED_TRACE(name);
    const Outcome outcome = load(root / name);
    EXPECT_EQ(outcome.found, "nothing");
    EXPECT_THAT(outcome.log, AllOf(HasSubstr("training starts from the beginning"), HasSubstr(said)));
    EXPECT_EQ(outcome.log.find("from the beginning"), outcome.log.rfind("from the beginning")) << "of rank 0 alone";
    const Outcome refused = load(root / name, /*strict=*/true);
    EXPECT_THAT(refused.log, IsEmpty());
    EXPECT_THAT(refused.found, HasSubstr(name == "gone" ? root / "gone/s1" : said));
  }
  EXPECT_THAT(load(root / "run").log, IsEmpty());
}

TEST(Unusable, AListOfOneCheckpointNamesTheWayOut) {
  const TemporaryDirectory root;
  save_numbered(root.path(), {1});
  EXPECT_EQ(list_checkpoints(root.path()).size(), 1U);
  const std::string said = testing::message_of<ValueError>([&] { list_checkpoints(root / "s1"); });
  EXPECT_THAT(said, AllOf(HasSubstr(root / "s1"), HasSubstr("is itself a checkpoint")));
}

// The newest one lost its manifest, or all.
TEST(Unusable, WhatTheHintNamesMustBeThere) {
  for (const std::string lost : {"s2/manifest.json", "s2"}) {
    SCOPED_TRACE(lost);
    const TemporaryDirectory root;
    save_numbered(root.path(), {1, 2});
    fs::remove_all(root / lost);
    const Outcome outcome = load(root.path());
    EXPECT_EQ(outcome.found, "s1");
    EXPECT_THAT(outcome.log, AllOf(HasSubstr("checkpoint 's2' is passed over: "), HasSubstr(root / lost)));
    EXPECT_THAT(load(root.path(), /*strict=*/true).found, AllOf(HasSubstr("\n  s2: "), HasSubstr(root / lost)));
    const auto summaries = list_checkpoints(root.path());
    ASSERT_EQ(summaries.size(), 2U);
    EXPECT_EQ(summaries[1].tag, "s2");
    EXPECT_THAT(summaries[1].problem, HasSubstr(root / lost));
    EXPECT_THAT(verify_checkpoint(root.path()), ElementsAre(AllOf(HasSubstr("'s2': "), HasSubstr(root / lost))));
    if (lost != "s2") {
      EXPECT_THAT(verify_checkpoint(root / "s2"), ElementsAre(HasSubstr(root / lost)));
    }
    save_numbered(root.path(), {3});
    EXPECT_EQ(load(root.path(), /*strict=*/true).found, "s3");
  }
}

TEST(Unusable, ADamagedManifestOfAnOlderOneIsNoErrorWhenStrict) {
  const std::vector<std::function<void(const std::string&)>> damages = {
      change_last_byte,
      [](const std::string& path) { put(path, ""); },
      [](const std::string& path) { put(path, "{}"); },
      [](const std::string& path) { fs::resize_file(path, fs::file_size(path) / 2); },
      [](const std::string& path) { fs::remove(path), fs::create_symlink("/etc/hostname", path); },
  };
  for (size_t i = 0; i < damages.size(); ++i) {
    SCOPED_TRACE(i);
    const TemporaryDirectory root;
    save_numbered(root.path(), {1, 2});
    damages[i](root / "s1/manifest.json");
    const Outcome outcome = load(root.path(), /*strict=*/true);
    EXPECT_EQ(outcome.found, "s2");
    EXPECT_THAT(outcome.log, HasSubstr("'s1' is passed over"));
    // Whole, but older than the damaged one.
    save_numbered(root.path(), {3});
    damages[i](root / "s3/manifest.json");
    EXPECT_THAT(load(root.path(), /*strict=*/true).found, HasSubstr(root / "s3/manifest.json"));
  }
}

// A save that died between the commit and the hint, or a hint that was lost: the manifests' beginnings tell.
TEST(Unusable, WithoutTheHintTheSequenceTellsWhatIsOlder) {
  for (const std::string hint : {"s1", ""}) {
    SCOPED_TRACE(hint);
    const TemporaryDirectory root;
    save_numbered(root.path(), {1, 2, 3});
    change_last_byte(root / "s2/manifest.json");
    const auto forget = [&] { hint.empty() ? fs::remove(root / "latest"), void() : put(root / "latest", hint); };
    forget();
    EXPECT_EQ(load(root.path(), /*strict=*/true).found, "s3");
    save_numbered(root.path(), {4});
    forget();
    change_last_byte(root / "s4/manifest.json");
    EXPECT_THAT(load(root.path(), /*strict=*/true).found, HasSubstr(root / "s4/manifest.json"));
    fs::remove_all(root / "s4");
    put(root / "s2/manifest.json", "{}");  // of no age that could be told
    EXPECT_THAT(load(root.path(), /*strict=*/true).found, HasSubstr(root / "s2/manifest.json"));
  }
}

TEST(Unusable, OfADirectoryAllThatIsDamagedIsTold) {
  const TemporaryDirectory root;
  save_numbered(root.path(), {1, 2, 3});
  fs::resize_file(root / "s1/rank-00001.safetensors", 10);
  put(root / "s2/manifest.json", contents_of(root / "s2/manifest.json").substr(0, 200));
  EXPECT_THAT(verify_checkpoint(root.path()),
              ElementsAre(HasSubstr(root / "s1/rank-00001.safetensors"), HasSubstr("'s2': ")));
  EXPECT_THAT(verify_checkpoint(root / "s2"), ElementsAre(HasSubstr(root / "s2/manifest.json")));
  EXPECT_THAT(verify_checkpoint(root / "s3"), IsEmpty());
  for (const int64_t step : {1, 3}) put(root / (tag_of(step) + "/manifest.json"), "{}");
  EXPECT_THAT(verify_checkpoint(root.path()),
              ElementsAre(HasSubstr("'s1': "), HasSubstr("'s2': "), HasSubstr("'s3': ")));
  EXPECT_THROW(inspect_checkpoint(root.path()), IoError);
}

TEST(Unusable, WhatIsDeletedMeanwhileIsLeftOutOfAList) {
  const TemporaryDirectory root;
  save_numbered(root.path(), {1000, 2});
  std::atomic<bool> done = false;
  std::thread run([&] {  // as one that saves with keep = 2, but quickly
    for (int64_t step = 1; !done; ++step) fs::rename(root / tag_of(1000 * step), root / tag_of(1000 * (step + 1)));
  });
  std::set<std::string> problems;
  for (int i = 0; i < 2000; ++i)
    for (const CheckpointSummary& summary : list_checkpoints(root.path())) problems.insert(summary.problem);
  done = true;
  run.join();
  EXPECT_THAT(problems, ElementsAre(""));
}

TEST(Unusable, WhoMayNotReadIsNotToldToWriteElsewhere) {
  const TemporaryDirectory root;
  save_numbered(root.path(), {1});
  for (const IoOp op : {IoOp::kOpenDir, IoOp::kOpen}) {
    FaultyIo faulty(posix_io());
    const Directory directory = Directory::open(faulty, root.path());
    faulty.fail({op, 1, EACCES, /*sticky=*/false});
    const std::string said = testing::message_of<IoError>([&] { read_manifest(directory, "s1"); });
    EXPECT_THAT(said, AllOf(HasSubstr("may not read it"), ::testing::Not(HasSubstr("write"))));
  }
}

}  // namespace
}  // namespace zeroshard
