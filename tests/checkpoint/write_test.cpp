#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "zeroshard/checkpoint_files.h"
#include "zeroshard/error.h"

namespace zeroshard {
namespace {

class WriteCheckpoint : public ::testing::Test {
 protected:
  WriteCheckpoint() {
    std::string path = ::testing::TempDir() + "zeroshard-write-XXXXXX";
    root_ = ::mkdtemp(path.data());
    checkpoint_ = {root_, "begin", 7, R"({"core": {}, "front": {}})", "{}", {{"imported from", "elsewhere"}}, {}};
  }
  ~WriteCheckpoint() override { std::filesystem::remove_all(root_); }

  void add(const std::string& name, std::vector<int64_t> shape, const void* data) {
    checkpoint_.tensors.push_back({{name, "weight", "F32", {name + ".tied"}, std::move(shape), true, 5, 0}, data});
  }

  std::string root_;
  NewCheckpoint checkpoint_;
  const std::vector<float> values_{1, 2, 3, 4, 5, 6};
};

TEST_F(WriteCheckpoint, IsAWholeCheckpointOfWhatWasGiven) {
  add("a", {2, 3}, values_.data());
  add("empty", {0, 4}, nullptr);
  add("scalar", {}, values_.data() + 1);
  write_checkpoint(checkpoint_);
  EXPECT_EQ(verify_checkpoint(root_ + "/begin"), std::vector<std::string>());
  const CheckpointDetails details = inspect_checkpoint(root_);
  EXPECT_EQ(details.summary.step, 7);
  EXPECT_EQ(details.summary.world_size, 1);
  EXPECT_EQ(details.versions.at("imported from"), "elsewhere");
  ASSERT_EQ(details.tensors.size(), 3u);
  EXPECT_EQ(details.tensors[0].shape, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(details.tensors[0].aliases, std::vector<std::string>{"a.tied"});
  EXPECT_TRUE(details.tensors[0].trainable);
  EXPECT_EQ(details.tensors[0].updates, 5);
}

TEST_F(WriteCheckpoint, HasTheValues) {
  add("a", {6}, values_.data());
  write_checkpoint(checkpoint_);
  checkpoint_.tag = "again";
  const std::vector<float> others{1, 2, 3, 4, 5, 7};
  checkpoint_.tensors[0].data = others.data();
  write_checkpoint(checkpoint_);
  EXPECT_EQ(diff_checkpoints(root_ + "/begin", root_ + "/begin").size(), 0u);
  EXPECT_EQ(diff_checkpoints(root_ + "/begin", root_ + "/again").size(), 1u);
}

TEST_F(WriteCheckpoint, RefusesATensorWithoutData) {
  add("a", {6}, nullptr);
  EXPECT_THROW(write_checkpoint(checkpoint_), ValueError);
  EXPECT_TRUE(std::filesystem::is_empty(root_));
}

}  // namespace
}  // namespace zeroshard
