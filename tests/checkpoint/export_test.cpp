#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <limits>

#include "checkpoint/model_files.h"
#include "checkpoint/support.h"
#include "file/support.h"
#include "zeroshard/checkpoint_files.h"
#include "zeroshard/error.h"

namespace zeroshard {
namespace {

using ::testing::AllOf;
using testing::change_last_byte;
using testing::contents_of;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
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

// One that an export left when it was killed before its last step is read as neither model; the next export ends that.
TEST_F(Export, AFileBesideTheIndexOfOthersIsNotReadAsEitherModel) {
  write(kOne);
  put(out_ / "model.safetensors", contents_of(out_ / "model-00001-of-00003.safetensors"));
  ::testing::Matcher<std::string> told =
      AllOf(HasSubstr("both model.safetensors and model.safetensors.index.json"), HasSubstr(out_.path()));
  EXPECT_THAT([&] { ModelFiles{out_.path()}; }, ::testing::ThrowsMessage<ValueError>(told));
  for (const int64_t max_file_bytes : {kOne, kAll}) {
    put(out_ / "model.safetensors", "old");
    write(max_file_bytes);
    EXPECT_EQ(ModelFiles(out_.path()).tensors().size(), 3U);
  }
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

// Values that fp32 has and a dtype of an export does not.
class ExportedValues : public ::testing::Test {
 protected:
  // What is wrong with an export of `values`, or "".
  std::string export_as(const std::string& dtype, const std::vector<float>& values, bool changed = false) {
    const TemporaryDirectory root;
    NewCheckpoint checkpoint{root.path(), "a", 1, R"({"core": {}, "front": {}})", "{}", {}, {}};
    checkpoint.tensors.push_back({{"w", "weight", "F32", {}, {int64_t(values.size())}, true, 0, 0}, values.data()});
    write_checkpoint(checkpoint);
    ExportOptions options{.dtype = dtype};
    if (changed) options.change = [](const auto&, int64_t, int64_t, float* numbers, const auto&) { numbers[1] *= 10; };
    try {
      export_weights(root.path(), out_.path(), options);
      return "";
    } catch (const ValueError& error) {
      return error.what();
    }
  }
  const TemporaryDirectory out_;
};

TEST_F(ExportedValues, AreNeverMadeInfinite) {
  constexpr float kInf = std::numeric_limits<float>::infinity(), kNan = std::numeric_limits<float>::quiet_NaN();
  put(out_ / "model.safetensors", "old");
  EXPECT_THAT(export_as("F16", {1, kInf, -1e5F}), AllOf(HasSubstr("'w' has the value -100000 at element 2 of 3"),
                                                        HasSubstr("too large for F16"), HasSubstr("BF16 or F32")));
  EXPECT_THAT(export_as("F16", {1, 65520}), HasSubstr("the value 65520"));  // the first that is rounded to infinity
  EXPECT_THAT(export_as("BF16", {kNan, 3.4e38F}), AllOf(HasSubstr("at element 1 of 2"), HasSubstr("export in F32")));
  EXPECT_THAT(export_as("F16", {1, 1e4F}, /*changed=*/true), HasSubstr("the value 100000 at element 1"));
  EXPECT_EQ(contents_of(out_ / "model.safetensors"), "old");
  EXPECT_THAT(names_in(out_.path()), ElementsAre("model.safetensors"));
  EXPECT_EQ(export_as("F16", {1, 65519, -65504}), "");
  EXPECT_EQ(export_as("BF16", {1e5F, 3.38e38F}), "");
  EXPECT_EQ(export_as("F32", {1e5F, 3.4e38F}), "");
}

TEST_F(ExportedValues, ThatAreNotFiniteStaySo) {
  constexpr float kInf = std::numeric_limits<float>::infinity(), kNan = std::numeric_limits<float>::quiet_NaN();
  ASSERT_EQ(export_as("F16", {kInf, -kInf, kNan, 1}), "");
  const std::string file = contents_of(out_ / "model.safetensors");
  const std::string_view values = std::string_view(file).substr(file.size() - 8);
  EXPECT_EQ(values.substr(0, 4), std::string_view("\x00\x7c\x00\xfc", 4));
  EXPECT_EQ(values[5] & 0x7c, 0x7c);
  EXPECT_NE(values[5] & 0x03, 0);
  EXPECT_EQ(values.substr(6), std::string_view("\x00\x3c", 2));
}

}  // namespace
}  // namespace zeroshard
