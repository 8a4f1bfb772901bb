#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "checkpoint/support.h"
#include "file/support.h"
#include "zeroshard/checkpoint_files.h"
#include "zeroshard/error.h"

namespace zeroshard {
namespace {

using testing::change_last_byte;
using testing::contents_of;
using ::testing::ElementsAre;
using testing::names_in;
using testing::put;
using testing::TemporaryDirectory;
using ::testing::UnorderedElementsAre;

constexpr int64_t kAll = 1 << 20, kOne = 1;  // largest bytes of a file: one file, or one of each tensor

class Export : public ::testing::Test {
 protected:
  Export() {
    NewCheckpoint checkpoint{root_.path(), "a", 1, R"({"core": {}, "front": {}})", "{}", {}, {}};
    for (const char* name : {"one", "three", "two"})
      checkpoint.tensors.push_back({{name, "weight", "F32", {}, {4}, true, 0, 0}, values_.data()});
    write_checkpoint(checkpoint);
    put(out_ / "config.json", "x");
    put(out_ / "model-00001-of-00002.gguf", "x");  // not ours
  }
  void write(int64_t max_file_bytes) { export_weights(root_.path(), out_.path(), {.max_file_bytes = max_file_bytes}); }
  // Without those that are always there.
  std::vector<std::string> names() const {
    std::vector<std::string> all = names_in(out_.path());
    EXPECT_EQ(std::erase_if(all, [](const auto& name) { return name == "config.json" || name.ends_with("gguf"); }), 2U);
    return all;
  }

  const TemporaryDirectory root_, out_;
  const std::vector<float> values_{1, 2, 3, 4};
};

TEST_F(Export, OneFileTakesThePlaceOfSeveral) {
  write(kOne);
  EXPECT_THAT(names(), ElementsAre("model-00001-of-00003.safetensors", "model-00002-of-00003.safetensors",
                                   "model-00003-of-00003.safetensors", "model.safetensors.index.json"));
  write(kAll);
  EXPECT_THAT(names(), ElementsAre("model.safetensors"));
}

TEST_F(Export, SeveralFilesTakeThePlaceOfOneAndOfAnotherNumber) {
  write(kAll);
  write(2 * 16);
  EXPECT_THAT(names(), ElementsAre("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors",
                                   "model.safetensors.index.json"));
  write(kOne);
  EXPECT_THAT(names(), ElementsAre("model-00001-of-00003.safetensors", "model-00002-of-00003.safetensors",
                                   "model-00003-of-00003.safetensors", "model.safetensors.index.json"));
  write(kOne);
  EXPECT_EQ(names().size(), 4U);
}

TEST_F(Export, ADamagedCheckpointLeavesTheEarlierExport) {
  change_last_byte(root_ / "a/rank-00000.safetensors");  // of the last tensor
  put(out_ / "model-00001-of-00003.safetensors", "old");
  put(out_ / "model.safetensors", "old");
  put(out_ / "model.safetensors.index.json", "old");
  for (const int64_t max_file_bytes : {kAll, kOne}) {
    EXPECT_THROW(write(max_file_bytes), IoError);
    EXPECT_THAT(names(), UnorderedElementsAre("model-00001-of-00003.safetensors", "model.safetensors",
                                              "model.safetensors.index.json"));
    for (const std::string& name : names()) EXPECT_EQ(contents_of(out_ / name), "old");
  }
}

}  // namespace
}  // namespace zeroshard
