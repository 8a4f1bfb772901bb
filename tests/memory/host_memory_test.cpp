#include "memory/host_memory.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>

namespace zeroshard {
namespace {

// A folder that stands for "/".
class HostFiles : public ::testing::Test {
 protected:
  HostFiles() {
    std::string name = (std::filesystem::temp_directory_path() / "zeroshard-host-XXXXXX").string();
    root_ = ::mkdtemp(name.data());
    write("proc/meminfo", "MemTotal:       1000 kB\nMemFree:         100 kB\nMemAvailable:    600 kB\n");
  }
  ~HostFiles() override { std::filesystem::remove_all(root_); }
  void write(const std::string& path, const std::string& text) {
    const std::filesystem::path file = std::filesystem::path(root_) / path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  HostMemory read() const { return read_host_memory(root_); }

  std::string root_;
};

TEST_F(HostFiles, WithoutControlGroupsThereIsTheMachine) {
  const HostMemory memory = read();
  EXPECT_EQ(memory.most(), 1'024'000);
  EXPECT_EQ(memory.free(), 614'400);
  EXPECT_FALSE(memory.cgroup_limit);
}

TEST_F(HostFiles, TheLowestLimitOfNestedGroupsCounts) {
  write("proc/self/cgroup", "0::/jobs/mine\n");
  write("sys/fs/cgroup/jobs/mine/memory.max", "max\n");
  write("sys/fs/cgroup/jobs/memory.max", "500000\n");
  write("sys/fs/cgroup/jobs/memory.current", "450000\n");
  write("sys/fs/cgroup/jobs/memory.stat", "anon 1\nfile 7\ninactive_file 100000\n");
  const HostMemory memory = read();
  EXPECT_EQ(memory.most(), 500'000);
  EXPECT_EQ(memory.free(), 150'000);
}

TEST_F(HostFiles, InAContainerTheRootIsTheGroup) {
  write("proc/self/cgroup", "0::/a/path/of/the/host\n");
  write("sys/fs/cgroup/memory.max", "300000\n");
  EXPECT_EQ(read().most(), 300'000);
}

TEST_F(HostFiles, VersionOneHasOneTreePerController) {
  write("proc/self/cgroup", "5:cpu,cpuacct:/x\n4:memory:/job\n0::/\n");
  write("sys/fs/cgroup/memory/job/memory.limit_in_bytes", "400000\n");
  write("sys/fs/cgroup/memory/job/memory.usage_in_bytes", "500000\n");
  write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");  // none
  const HostMemory memory = read();
  EXPECT_EQ(memory.most(), 400'000);
  EXPECT_EQ(memory.free(), 0);
}

// Two containers of one machine have a limit each; the processes in one of them share it, in whichever group below.
TEST_F(HostFiles, ThoseBelowOneLimitShareIt) {
  const auto number = [&](const std::string& group) {
    write("proc/self/cgroup", "0::" + group + "\n");
    return number_of(read());
  };
  const int64_t machine = number("/");
  for (const std::string container : {"/one", "/other"}) write("sys/fs/cgroup" + container + "/memory.max", "500000\n");
  write("sys/fs/cgroup/one/deeper/memory.max", "max\n");
  EXPECT_EQ(number("/one"), number("/one/deeper"));
  EXPECT_NE(number("/one"), number("/other"));
  EXPECT_NE(number("/one"), machine);
  EXPECT_EQ(number("/"), machine);
}

TEST_F(HostFiles, ALimitAboveTheMachineIsNone) {
  write("proc/self/cgroup", "0::/\n");
  write("sys/fs/cgroup/memory.max", "99999999\n");
  EXPECT_EQ(read().most(), 1'024'000);
}

TEST(HostMemory, WithoutFilesNothingIsKnown) {
  EXPECT_EQ(read_host_memory("/nowhere").most(), 0);
}

TEST(HostMemory, ThisMachineHasSome) {
  const HostMemory memory = read_host_memory();
  EXPECT_GT(memory.free(), 0);
  EXPECT_GE(memory.most(), memory.free());
  EXPECT_GT(number_of(memory), 0);
}

}  // namespace
}  // namespace zeroshard
