#include "file/request_sizes.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <thread>

#include "base/boot_id.h"
#include "file/open_swap_files.h"
#include "file/support.h"

namespace zeroshard {
namespace {

using testing::contents_of;
using testing::put;
using testing::TemporaryDirectory;

constexpr RequestSizes kUsual{int64_t{1} << 20, 32};
constexpr RequestSizes kKept{int64_t{64} << 10, 5};  // which no measurement takes

// A disk, and what is known of it.
class RequestSizesTest : public ::testing::Test {
 protected:
  RequestSizesTest() {
    options_.cache = home_ / "cache/zeroshard";
    options_.usual = kUsual;
    options_.ring = &kernel_ring();
  }

  uint64_t device() {
    FileStatus status;
    EXPECT_EQ(posix_io().fstat(Directory::open(posix_io(), disk_.path()).fd(), status), 0);
    return status.device;
  }
  std::string line(const std::string& boot, uint64_t device, const RequestSizes& sizes) {
    return concat(boot, " ", device, " ", sizes.block_bytes, " ", sizes.queue_depth, "\n");
  }
  // What is known, without the header.
  std::string known() {
    const std::string text = contents_of(options_.cache + "/disks");
    EXPECT_TRUE(text.starts_with("# ")) << text;
    return text.substr(text.find('\n') + 1);
  }
  void know(const std::string& text) {
    std::filesystem::create_directories(options_.cache);
    put(options_.cache + "/disks", text);
  }
  RequestSizes sizes(Io& io = posix_io()) { return measured_sizes(disk_.path(), options_, io); }
  std::string error() {
    try {
      sizes();
    } catch (const IoError& error) {
      return error.what();
    }
    return "";
  }

  TemporaryDirectory home_, disk_;
  RequestSizesOptions options_;
};

TEST_F(RequestSizesTest, AreMeasuredOnceForEachDisk) {
  const RequestSizes first = sizes();
  EXPECT_GT(first.block_bytes, 0);
  EXPECT_GT(first.queue_depth, 0);
  EXPECT_EQ(known(), line(boot_id(), device(), first));
  EXPECT_TRUE(testing::swap_files_in(disk_.path()).empty());
  EXPECT_TRUE(std::filesystem::is_empty(disk_.path()));
  FaultyIo io(posix_io());
  EXPECT_EQ(sizes(io), first);
  EXPECT_EQ(io.calls(IoOp::kWrite), 0);
}

TEST_F(RequestSizesTest, AreThoseThatAreKnown) {
  know(line("another", 1, kUsual) + line(boot_id(), device() + 1, kUsual) + line(boot_id(), device(), kKept));
  EXPECT_EQ(sizes(), kKept);
}

TEST_F(RequestSizesTest, OfOtherMachinesAndDisksAreKept) {
  const std::string other = line("another", device(), kKept) + line(boot_id(), device() + 1, kKept);
  know(other);
  const RequestSizes measured = sizes();
  EXPECT_NE(measured, kKept);
  EXPECT_EQ(known(), other + line(boot_id(), device(), measured));
}

TEST_F(RequestSizesTest, OfTheLatestDisksAreKept) {
  std::string many;
  for (int i = 0; i < 250; ++i) many += line(concat("boot", i), 1, kKept);
  know(many);
  const RequestSizes measured = sizes();
  const std::string kept = known();
  EXPECT_EQ(std::count(kept.begin(), kept.end(), '\n'), 200);
  EXPECT_TRUE(kept.ends_with(line("boot249", 1, kKept) + line(boot_id(), device(), measured)));
}

TEST_F(RequestSizesTest, ThatMakeNoSenseAreMeasuredAgain) {
  const std::string disk = concat(boot_id(), " ", device(), " ");
  know("\n\n" + disk + "\n" + disk + "4095 8\n" + disk + "4096 0\n" + disk + "-4096 8\n" + disk + "x 8\n" + disk +
       "99999999999999999999 8\n" + std::string("\0\xff\n", 3));
  const RequestSizes measured = sizes();
  EXPECT_EQ(known(), line(boot_id(), device(), measured));
}

TEST_F(RequestSizesTest, WaitForAnotherProcessThatMeasures) {
  know("");
  const Directory cache = Directory::open(posix_io(), options_.cache);
  const auto lock = std::make_unique<OpenFd>(posix_io(), posix_io().open_or_create_at(cache.fd(), "disks.lock"));
  ASSERT_EQ(posix_io().lock(lock->get()), 0);
  options_.patience = std::chrono::milliseconds(50);
  EXPECT_NE(error().find("another process has measured the disk of " + disk_.path()), std::string::npos) << error();
  options_.patience = std::chrono::minutes(10);
  std::thread other([&] { know(line(boot_id(), device(), kKept)); });
  EXPECT_EQ(sizes(), kKept);  // as soon as it is known, whoever has the lock
  other.join();
}

TEST_F(RequestSizesTest, AnErrorNamesThePathAndLeavesTheLock) {
  options_.cache = home_ / "file";
  put(options_.cache, "");
  EXPECT_NE(error().find(options_.cache), std::string::npos) << error();
  options_.cache.clear();
  EXPECT_NE(error().find("XDG_CACHE_HOME"), std::string::npos) << error();
  options_.cache = home_ / "cache";
  FaultyIo io(posix_io());
  io.fail({.op = IoOp::kWrite, .nth = 1, .sticky = true});
  EXPECT_THROW(sizes(io), IoError);
  EXPECT_EQ(io.calls(IoOp::kAllocate), 0);  // it has not measured what it could not keep
  EXPECT_FALSE(std::filesystem::exists(options_.cache + "/disks"));
  EXPECT_EQ(sizes(), sizes());  // another attempt may measure
}

TEST(CacheDirectoryTest, IsWhereTheUserHasTold) {
  const auto with = [](const char* cache, const char* home) {
    cache == nullptr ? ::unsetenv("XDG_CACHE_HOME") : ::setenv("XDG_CACHE_HOME", cache, 1);
    home == nullptr ? ::unsetenv("HOME") : ::setenv("HOME", home, 1);
    return cache_directory();
  };
  const auto saved = [](const char* name) {
    const char* const value = ::getenv(name);
    return value == nullptr ? std::optional<std::string>() : std::string(value);
  };
  const std::optional<std::string> cache = saved("XDG_CACHE_HOME"), home = saved("HOME");
  EXPECT_EQ(with("/c", "/h"), "/c/zeroshard");
  EXPECT_EQ(with(nullptr, "/h"), "/h/.cache/zeroshard");
  EXPECT_EQ(with("relative", "/h"), "/h/.cache/zeroshard");
  EXPECT_EQ(with("", "relative"), "");
  EXPECT_EQ(with(nullptr, nullptr), "");
  with(cache ? cache->c_str() : nullptr, home ? home->c_str() : nullptr);
}

}  // namespace
}  // namespace zeroshard
