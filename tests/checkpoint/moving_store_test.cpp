#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "base/format.h"
#include "checkpoint/support.h"
#include "file/support.h"
#include "support/around_io.h"
#include "zeroshard/checkpoint_files.h"
#include "zeroshard/error.h"

// A directory whose checkpoints others replace, delete, rename and copy.
namespace zeroshard {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::kNumel;
using testing::load;
using testing::names_in;
using testing::put;
using testing::run_local_world;
using testing::save;
using testing::TemporaryDirectory;

// Another job saves at the n-th call of the load, for every n. Calls `load_by`, which returns the step.
void save_at_every_call(const testing::SmallSave& first, const testing::SmallSave& next,
                        const std::function<std::string(const std::string& root, Io& io)>& load_by) {
  for (int n = 1;; ++n) {
    SCOPED_TRACE(n);
    ASSERT_LT(n, 1000);
    const TemporaryDirectory root;
    const auto in_root = [&](testing::SmallSave options) {
      options.root = root.path();
      return save(options);
    };
    ASSERT_THAT(in_root(first), Each(""));
    std::atomic<int> calls = 0;
    const auto at_call = [&](IoOp, const auto& call) {
      if (++calls == n) {
        EXPECT_THAT(in_root(next), Each(""));
      }
      return call();
    };
    testing::AroundIo io(posix_io(), at_call);
    EXPECT_THAT(load_by(root.path(), io), ::testing::AnyOf(std::to_string(first.step), std::to_string(next.step)));
    if (calls < n) break;
  }
}

TEST(MovingStore, ALoadFindsTheNextWhenTheNewestIsDeleted) {
  for (const bool strict : {false, true}) {
    SCOPED_TRACE(strict);
    save_at_every_call({"", "s1", 1}, {"", "s2", 2, /*keep=*/1},
                       [&](const std::string& root, Io& io) { return load({.root = root, .strict = strict}, io); });
  }
}

TEST(MovingStore, ALoadOfATagThatIsReplacedHasTheOldOrTheNewOne) {
  for (const auto& tag : {std::optional<std::string>("same"), std::optional<std::string>()}) {
    save_at_every_call({"", "same", 1}, {"", "same", 2},
                       [&](const std::string& root, Io& io) { return load({.root = root, .tag = tag}, io); });
  }
}

// Another job saves while an export is under way: before the values are read, and between two of them.
TEST(MovingStore, AnExportFindsTheNextWhenItsCheckpointIsDeletedOrReplaced) {
  struct Case {
    std::string tag, next, path;
    int keep;
  };
  for (const Case& each : {Case{"s1", "s2", "", 1}, Case{"same", "same", "", 0}, Case{"same", "same", "/same", 0}}) {
    for (const bool while_reading : {false, true}) {
      SCOPED_TRACE(each.tag + each.path + (while_reading ? " while it is read" : " before it is read"));
      const TemporaryDirectory root, out;
      ASSERT_THAT(save({root.path(), each.tag, 1}), Each(""));
      bool saved = false;
      const auto save_next = [&] {
        if (!std::exchange(saved, true)) {
          EXPECT_THAT(save({root.path(), each.next, 2, each.keep}), Each(""));
        }
      };
      std::vector<float> exported;
      ExportOptions options;
      options.rename = [&](const std::string& name) {
        if (!while_reading) save_next();
        return name;
      };
      options.change = [&](const std::string& name, int64_t begin, int64_t, float* values, const auto& read) {
        if (begin == 0) exported.clear();
        if (while_reading) {
          save_next();
          read(name, 0, kNumel, values);
        }
        exported.assign(values, values + kNumel);
      };
      export_weights(root.path() + each.path, out.path(), options);
      EXPECT_THAT(exported, Each(exported.front()));
      EXPECT_EQ(names_in(out.path()), std::vector<std::string>{"model.safetensors"});
    }
  }
}

TEST(MovingStore, AnExportOfATagThatIsDeletedIsAnError) {
  const TemporaryDirectory root, out;
  ASSERT_THAT(save({root.path(), "s1", 1}), Each(""));
  ASSERT_THAT(save({root.path(), "s2", 2}), Each(""));
  ExportOptions options;
  options.rename = [&](const std::string& name) {
    fs::remove_all(root / "s1");
    return name;
  };
  EXPECT_THROW(export_weights(root / "s1", out.path(), options), IoError);
  EXPECT_THAT(names_in(out.path()), IsEmpty());
}

TEST(MovingStore, ATagThatIsDeletedMeanwhileIsAnError) {
  const TemporaryDirectory root;
  ASSERT_THAT(save({root.path(), "s1", 1}), Each(""));
  const auto deleting = [&](IoOp op, const auto& call) {
    if (op == IoOp::kRead) fs::remove_all(root / "s1");
    return call();
  };
  testing::AroundIo io(posix_io(), deleting);
  EXPECT_THAT(load({.root = root.path(), .tag = "s1"}, io), HasSubstr("checkpoint 's1': "));
}

void copy_over(const std::string& from, const std::string& to) {
  fs::copy_file(from, to, fs::copy_options::overwrite_existing);
}

// All numbers in it fit, and so do the sizes of the files.
TEST(MovingStore, AManifestOfAnotherCheckpointIsDamage) {
  const TemporaryDirectory root;
  ASSERT_THAT(save({root.path(), "global_step5", 5}), Each(""));
  ASSERT_THAT(save({root.path(), "global_step10", 10}), Each(""));
  copy_over(root / "global_step5/manifest.json", root / "global_step10/manifest.json");
  EXPECT_EQ(load({.root = root.path()}), "5");
  const auto names_both = AllOf(HasSubstr(root / "global_step10/manifest.json"), HasSubstr("'global_step5'"));
  EXPECT_THAT(load({.root = root.path(), .strict = true}), names_both);
  EXPECT_THAT(load({.root = root.path(), .tag = "global_step10"}), names_both);
  EXPECT_THAT(verify_checkpoint(root.path()), ElementsAre(names_both));
}

TEST(MovingStore, ARenamedCheckpointIsWhole) {
  const TemporaryDirectory root;
  ASSERT_THAT(save({root.path(), "global_step5", 5}), Each(""));
  fs::rename(root / "global_step5", root / "best");
  put(root / "latest", "best");
  EXPECT_EQ(load({.root = root.path(), .strict = true}), "5");
  EXPECT_EQ(load({.root = root.path(), .tag = "best"}), "5");
  EXPECT_THAT(verify_checkpoint(root / "best"), IsEmpty());
}

TEST(MovingStore, OfCopiesTheNamedOneIsTaken) {
  const TemporaryDirectory root;
  ASSERT_THAT(save({root.path(), "b", 5}), Each(""));
  for (const std::string name : {"a", "c"}) fs::copy(root / "b", root / name);
  for (const std::string name : {"a", "b", "c"}) {
    put(root / "latest", name);
    EXPECT_EQ(inspect_checkpoint(root.path()).summary.tag, name);
  }
}

// ".." behind a link leads to where the kernel says, for whoever asks.
TEST(MovingStore, PathsAreTheKernels) {
  const TemporaryDirectory root;
  fs::create_directories(root / "deep/cur");
  fs::create_directory_symlink("deep/cur", root / "cur");
  const std::string path = root / "cur/../ckpt";
  ASSERT_THAT(save({path, "a", 1}), Each(""));
  EXPECT_TRUE(fs::exists(root / "deep/ckpt/a"));
  EXPECT_EQ(load({.root = path}), "1");
  EXPECT_EQ(inspect_checkpoint(path).path, root / "deep/ckpt/a");
  EXPECT_EQ(inspect_checkpoint(path + "/a/").summary.tag, "a");
}

}  // namespace
}  // namespace zeroshard
