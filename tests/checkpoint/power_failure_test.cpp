#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "base/format.h"
#include "checkpoint/versions.h"
#include "file/durable.h"
#include "support/model_disk.h"
#include "support/random.h"
#include "support/release.h"

namespace zeroshard {
namespace {

using testing::DiskChange;
using testing::DiskTree;
using testing::kVersionsRoot;
using testing::load_version;
using testing::ModelDisk;
using testing::PowerFailures;
using testing::QuietLog;
using testing::save_version;
using testing::SeededRandom;
using testing::Version;

// A first save into a new directory, one more, one that deletes the oldest, one that replaces the newest, one that goes
// back and deletes what is older, and one that is not to be found without its tag.
const std::vector<Version> kHistory = {
    {.number = 1, .tag = "s1", .step = 1},
    {.number = 2, .tag = "s2", .step = 2},
    {.number = 3, .tag = "s3", .step = 3, .keep = 2},
    {.number = 4, .tag = "s3", .step = 3, .keep = 2},
    {.number = 5, .tag = "s4", .step = 4, .keep = 1},
    {.number = 6, .tag = "apart", .step = 5, .keep = 0, .latest = false},
};

// What one save may leave, and from which change on it must have left.
struct Saved {
  Version version;
  size_t begin = 0, committed = 0, end = 0;           // how many changes there were
  std::string newest_before = {}, newest_after = {};  // versions that load without a tag
};

struct Recording {
  std::vector<DiskChange> changes;
  std::vector<Saved> saves;
};

// From where on a power failure must not undo the commit: the root was made durable after it got its name.
size_t committed_at(const std::vector<DiskChange>& changes, size_t begin, size_t root, const std::string& tag) {
  using Kind = DiskChange::Kind;
  for (size_t i = begin; i < changes.size(); ++i) {
    const bool moved = changes[i].kind == Kind::kRename || changes[i].kind == Kind::kExchange;
    if (!moved || changes[i].node != root || changes[i].to != tag) continue;
    for (size_t j = i + 1; j < changes.size(); ++j)
      if (changes[j].kind == Kind::kSync && changes[j].node == root) return j + 1;
  }
  return changes.size();
}

Recording record(int world_size) {
  ModelDisk disk;
  Recording recording;
  std::string newest = "nothing";
  for (const Version& version : kHistory) {
    Saved saved{.version = version, .begin = disk.changes().size(), .newest_before = newest};
    EXPECT_THAT(save_version(version, world_size, [&](int) -> Io& { return disk; }), ::testing::Each(""));
    if (version.latest) newest = std::to_string(version.number);
    saved.newest_after = newest;
    recording.changes = disk.changes();
    saved.end = recording.changes.size();
    saved.committed = committed_at(recording.changes, saved.begin, size_t(disk.node_of(kVersionsRoot)), version.tag);
    recording.saves.push_back(saved);
  }
  EXPECT_EQ(disk.open_files(), 0U);
  return recording;
}

// What a power failure during (or after) one save may show: per tag the versions, "nothing" among them.
struct Allowed {
  std::set<std::string> newest;
  std::map<std::string, std::set<std::string>> tags;
};

Allowed allowed_at(const Recording& recording, size_t index, size_t position) {
  const Saved& now = recording.saves[index];
  Allowed allowed;
  allowed.newest = {now.newest_after};
  if (position < now.committed) allowed.newest.insert(now.newest_before);
  for (size_t i = 0; i <= index; ++i) {
    const Version& version = recording.saves[i].version;
    allowed.tags[version.tag].insert(std::to_string(version.number));
  }
  return allowed;
}

// What is wrong with a disk; empty: nothing.
std::string flaw_of(const DiskTree& tree, const Allowed& allowed) {
  ModelDisk disk(tree);
  const std::string newest = load_version(disk);
  if (!allowed.newest.contains(newest)) return concat("without a tag: ", newest);
  const auto root = Directory::open_if_there(disk, kVersionsRoot);
  if (!root) return {};
  const StoreListing listing = list_store(*root);
  for (const auto& [tag, reason] : listing.bad) return concat(tag, " is there, damaged: ", reason);
  std::set<std::string> there;
  for (const FoundCheckpoint& found : listing.committed) {
    const std::string version = load_version(disk, found.tag);
    const auto expected = allowed.tags.find(found.tag);
    if (expected == allowed.tags.end() || !expected->second.contains(version))
      return concat(found.tag, " is there: ", version);
    there.insert(found.tag);
  }
  if (!root->exists("latest")) return {};
  const std::string latest = read_small_file(*root, "latest", 256);
  return there.contains(latest) ? "" : concat("the hint names '", latest, "', which is not there");
}

// A run that is started again saves, whatever lies there, and finds what it has saved.
std::string flaw_of_going_on(const DiskTree& tree) {
  ModelDisk disk(tree);
  const Version next{.number = 9, .tag = "s3", .step = 9, .keep = 2};
  const std::string error = save_version(next, 1, [&](int) -> Io& { return disk; })[0];
  if (!error.empty()) return concat("the next save: ", error);
  const std::string found = load_version(disk);
  return found == "9" ? "" : concat("after the next save: ", found);
}

std::string text_of(const DiskChange& change) {
  static constexpr const char* kNames[] = {"make", "name", "unname", "rename", "exchange", "write", "resize", "sync"};
  return concat(kNames[size_t(change.kind)], " ", change.node, " ", change.name, " ", change.to, " ", change.offset);
}

class PowerFailure : public ::testing::TestWithParam<int> {};

// For every instant of six saves, some of the disks that a power failure may leave (at release size thousands): the
// whole old or the whole new checkpoint loads, the new one once it is committed. No tag is ever seen damaged, and the
// hint names a whole checkpoint.
TEST_P(PowerFailure, LeavesTheOldOrTheNewCheckpoint) {
  const QuietLog quiet;
  const Recording recording = record(GetParam());
  const int samples = testing::release() ? 40 : 2;
  SeededRandom random(20261121);
  PowerFailures failures(recording.changes);
  size_t save = 0;
  do {
    while (failures.position() > recording.saves[save].end) ++save;
    const Allowed allowed = allowed_at(recording, save, failures.position());
    const auto where = [&](const std::string& what) {
      return concat(what, " of change ", failures.position(), " of ", recording.changes.size(), " (",
                    failures.position() == 0 ? "" : text_of(recording.changes[failures.position() - 1]), "), save ",
                    recording.saves[save].version.number);
    };
    ASSERT_EQ(flaw_of(failures.none(), allowed), "") << where("nothing open");
    const size_t open = failures.open_changes();
    if (open > 0) {
      ASSERT_EQ(flaw_of(failures.all(), allowed), "") << where("all");
    }
    for (size_t i = 0; i < open && testing::release(); ++i) {
      ASSERT_EQ(flaw_of(failures.only(i), allowed), "") << where(concat("open change ", i, " alone"));
      ASSERT_EQ(flaw_of(failures.all_but(i), allowed), "") << where(concat("all but open change ", i));
    }
    for (int i = 0; i < samples && open > 0; ++i)
      ASSERT_EQ(flaw_of(failures.any(random), allowed), "") << where(concat("sample ", i));
    if (failures.position() % 4 == 0 || testing::release()) {
      ASSERT_EQ(flaw_of_going_on(failures.any(random)), "") << where("going on");
    }
  } while (failures.advance());
  EXPECT_EQ(save, recording.saves.size() - 1);
}

INSTANTIATE_TEST_SUITE_P(Worlds, PowerFailure, ::testing::Values(1, 2, 3));

}  // namespace
}  // namespace zeroshard
