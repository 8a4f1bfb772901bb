#include "support/model_disk.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <map>

#include "base/format.h"
#include "file/support.h"
#include "support/random.h"

namespace zeroshard {
namespace {

using testing::DiskTree;
using testing::ModelDisk;
using testing::PowerFailures;
using testing::Random;
using testing::SeededRandom;
using testing::TemporaryDirectory;

// One of many operations below the directory `dir`, by random numbers alone; what it returned.
std::string operate(Io& io, int dir, Random& random) {
  static const std::vector<std::string> kNames = {"a", "b", "c", "a/x", "b/x", "a/y", "c/z/z", "missing/x"};
  const std::string& name = kNames[random() % kNames.size()];
  const std::string plain = kNames[random() % 3], other = kNames[random() % 3];
  const uint64_t how = random() % 12, offset = random() % 2000, bytes = random() % 3000;
  const std::string data(size_t(bytes), char('a' + random() % 26));
  const auto with_file = [&](const std::function<int64_t(int)>& use, bool writes) {
    int fd = -1;
    if (writes) io.unlink_at(dir, name);
    fd = writes ? io.create_at(dir, name) : io.open_at(dir, name);
    if (fd < 0) return concat("open ", fd);
    const int64_t result = use(fd);
    FileStatus status;
    io.fstat(fd, status);
    io.fsync(fd);
    io.close(fd);
    return concat("size ", status.size, ", result ", result);
  };
  if (how == 0) return concat("mkdir ", io.mkdir_at(dir, name));
  if (how == 1) return concat("rmdir ", io.rmdir_at(dir, name));
  if (how == 2) return concat("unlink ", io.unlink_at(dir, name));
  if (how == 3) return concat("rename ", plain == other ? 0 : io.rename_at(dir, plain, other));
  if (how == 4) return concat("exchange ", plain == other ? 0 : io.exchange_at(dir, plain, other));
  if (how == 5) {
    FileStatus status;
    const int result = io.stat_at(dir, name, status);
    const bool file = result == 0 && status.kind == FileStatus::Kind::kRegular;
    return concat("stat ", result, " ", int(status.kind), " ", file ? status.size : 0);
  }
  if (how == 6) {
    const int fd = io.open_dir_at(dir, name);
    if (fd < 0) return concat("open_dir ", fd);
    std::vector<std::string> names;
    const int result = io.list(fd, names);
    io.close(fd);
    std::sort(names.begin(), names.end());
    std::string all = concat("list ", result);
    for (const std::string& each : names) all += " " + each;
    return all;
  }
  if (how <= 8) {
    std::string read(size_t(bytes), '.');
    const std::string result =
        with_file([&](int fd) { return io.pread(fd, read.data(), read.size(), int64_t(offset)); }, /*writes=*/false);
    return concat("read ", result, " ", read);
  }
  if (how == 9) return with_file([&](int fd) { return io.fallocate(fd, int64_t(offset) + 1); }, true);
  return with_file(
      [&](int fd) {
        io.pwrite(fd, data.data(), data.size(), int64_t(offset));
        return how == 10 ? 0 : io.ftruncate(fd, int64_t(offset / 2));
      },
      true);
}

// Else what is found on it says nothing about real ones.
TEST(ModelDisk, AnswersLikeTheOperatingSystem) {
  const TemporaryDirectory real;
  ModelDisk model;
  ASSERT_EQ(model.mkdir("/disk"), 0);
  const int there = posix_io().open_dir(real.path()), here = model.open_dir("/disk");
  SeededRandom one(20261121), two(20261121);
  for (int i = 0; i < 3000; ++i) ASSERT_EQ(operate(model, here, one), operate(posix_io(), there, two)) << i;
  posix_io().close(there);
  model.close(here);
  EXPECT_EQ(model.open_files(), 0U);
}

TEST(ModelDisk, DirectTransfersAreAligned) {
  ModelDisk model;
  const int root = model.open_dir("/"), fd = model.create_at(root, "file");
  alignas(512) char data[1024] = {};
  ASSERT_EQ(model.set_direct(fd, true), 0);
  EXPECT_EQ(model.pwrite(fd, data, 1024, 0), 1024);
  EXPECT_EQ(model.pwrite(fd, data, 512, 100), -EINVAL);
  EXPECT_EQ(model.pwrite(fd, data, 100, 512), -EINVAL);
  EXPECT_EQ(model.pread(fd, data + 1, 512, 0), -EINVAL);
}

std::string shown_tree(const DiskTree& tree, size_t at = 0) {
  if (!tree.nodes[at].directory) return tree.nodes[at].bytes;
  std::string text = "{";
  for (const auto& [name, target] : tree.nodes[at].names) text += concat(name, ":", shown_tree(tree, target), " ");
  return text + "}";
}

// A new name for a file that was written and never made durable.
TEST(PowerFailures, LoseWhatWasNotMadeDurableAndNothingElse) {
  ModelDisk disk;
  const int root = disk.open_dir("/");
  const int safe = disk.create_at(root, "safe"), lost = disk.create_at(root, "lost");
  disk.pwrite(safe, "1234", 4, 0);
  disk.fsync(safe);
  disk.pwrite(lost, "5678", 4, 0);
  disk.rename_at(root, "lost", "name");
  disk.fsync(root);
  disk.unlink_at(root, "safe");
  const auto changes = disk.changes();
  PowerFailures failures(changes);
  while (failures.advance()) {
  }
  EXPECT_EQ(shown_tree(failures.none()), "{name: safe:1234 }");
  EXPECT_EQ(shown_tree(failures.all()), "{name:5678 }");
  EXPECT_EQ(shown_tree(failures.only(0)), "{name:5678 safe:1234 }");
  EXPECT_EQ(shown_tree(failures.all_but(0)), "{name: }");
  SeededRandom random(1);
  std::set<std::string> seen;
  for (int i = 0; i < 2000; ++i) seen.insert(shown_tree(failures.any(random)));
  for (const std::string text : {"{name: safe:1234 }", "{name:5678 safe:1234 }", "{name:56 }", "{name:5678 }"})
    EXPECT_TRUE(seen.contains(text)) << text;
  EXPECT_TRUE(seen.contains(std::string("{name:\0\0\0\0 }", 12)));
}

}  // namespace
}  // namespace zeroshard
