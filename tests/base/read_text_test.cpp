#include "base/read_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "zeroshard/error.h"

namespace zeroshard {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class ReadText : public ::testing::Test {
 protected:
  ReadText() {
    std::string name = ::testing::TempDir() + "read_text_XXXXXX";
    folder_ = ::mkdtemp(name.data());
  }
  ~ReadText() override { fs::remove_all(folder_); }

  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  std::string write(const std::string& name, const std::string& text) const {
    std::ofstream(path(name), std::ios::binary) << text;
    return path(name);
  }
  static std::string error(const std::string& path, int64_t most_bytes = kMostTextBytes) {
    try {
      read_text(path, ": a hint", most_bytes);
    } catch (const IoError& error) {
      return error.what();
    }
    return "";
  }

  fs::path folder_;
};

TEST_F(ReadText, GivesAllOfAFile) {
  using namespace std::string_literals;
  for (const std::string& text : {""s, "a"s, "zero \0 byte"s, std::string(100'000, 'x')})
    EXPECT_EQ(read_text(write("file", text)), text);
  fs::create_symlink(path("file"), path("link"));
  EXPECT_EQ(read_text(path("link")).size(), 100'000u);
  EXPECT_THAT(read_text("/proc/self/status"), HasSubstr("VmPeak")) << "it has no size";
}

TEST_F(ReadText, ReadsUpToALimit) {
  EXPECT_EQ(read_text(write("file", "12345"), "", 5), "12345");
  EXPECT_EQ(error(write("file", "123456"), 5),
            "cannot read '" + path("file") + "' (it has 6 bytes; at most 5 are read): a hint");
  EXPECT_THAT(error("/proc/self/status", 100), HasSubstr("at most 100 are read"));
}

TEST_F(ReadText, NothingButRegularFiles) {
  fs::create_symlink("/dev/zero", path("endless"));
  ASSERT_EQ(::mkfifo(path("fifo").c_str(), 0600), 0);
  for (const std::string& name : {path("endless"), path("fifo"), folder_.string()})
    EXPECT_EQ(error(name), "cannot read '" + name + "' (it is not a regular file): a hint");
  EXPECT_EQ(error(path("none")), "cannot read '" + path("none") + "' (No such file or directory): a hint");
  EXPECT_THAT(error(std::string("a\0b", 3)), HasSubstr("zero byte"));
}

}  // namespace
}  // namespace zeroshard
