// Ranks on NUMA nodes, of hosts that are described by files like the kernel's.
#include "launch/cpu_places.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <stdexcept>

namespace zeroshard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

namespace fs = std::filesystem;

// A host, by the files that tell of it.
class FakeHost {
 public:
  FakeHost() {
    std::string name = (fs::temp_directory_path() / "zeroshard-host-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("cannot make " + name);
    root_ = name;
  }
  ~FakeHost() { fs::remove_all(root_); }
  FakeHost(const FakeHost&) = delete;
  FakeHost& operator=(const FakeHost&) = delete;

  void add_node(int number, const std::string& cpus) const {
    write(root_ / "sys/devices/system/node" / ("node" + std::to_string(number)) / "cpulist", cpus);
    write(root_ / "sys/devices/system/node/possible", "0-63");
  }
  void add_gpu(const std::string& address, int node) const {
    write(root_ / "proc/driver/nvidia/gpus" / address / "information", "Model: none");
    write(root_ / "sys/bus/pci/devices" / address / "numa_node", std::to_string(node));
  }
  std::string root() const { return root_.string() + "/"; }

 private:
  static void write(const fs::path& path, const std::string& text) {
    fs::create_directories(path.parent_path());
    std::ofstream(path) << text << "\n";
  }

  fs::path root_;
};

std::vector<int> cpus(int begin, int end) {
  std::vector<int> all;
  for (int cpu = begin; cpu < end; ++cpu) all.push_back(cpu);
  return all;
}

TEST(CpuPlaces, AsManyRanksOnEachNode) {
  const FakeHost host;
  host.add_node(0, "0-3,8-11");
  host.add_node(1, "4-7,12-15");
  const CpuPlaces places = numa_places(host.root(), cpus(0, 16), {}, 4);
  const std::vector<int> first{0, 1, 2, 3, 8, 9, 10, 11}, second{4, 5, 6, 7, 12, 13, 14, 15};
  EXPECT_THAT(places.cpus, ElementsAre(first, first, second, second));
  EXPECT_EQ(places.threads, 4);
  EXPECT_THAT(places.numa, HasSubstr("one of 2 NUMA nodes"));
  EXPECT_THAT(places.numa, Not(HasSubstr("GPU")));
}

TEST(CpuPlaces, EachRankIsOnTheNodeOfItsGpu) {
  const FakeHost host;
  host.add_node(0, "0-7");
  host.add_node(2, "8-11");  // numbers may have gaps
  host.add_gpu("0000:17:00.0", 0);
  host.add_gpu("0000:65:00.0", 0);
  host.add_gpu("0000:ca:00.0", 2);
  const CpuPlaces places = numa_places(host.root(), cpus(0, 12), {"2", "0", "1"}, 3);
  EXPECT_THAT(places.cpus, ElementsAre(cpus(8, 12), cpus(0, 8), cpus(0, 8)));
  EXPECT_EQ(places.threads, 4);  // of all alike: the step waits for the slowest
  EXPECT_THAT(places.numa, HasSubstr("that of its GPU"));
}

// GPUs that say no node, whose names are no numbers, of which there are too few, or whose node this process may not
// use.
TEST(CpuPlaces, GpusThatSayNothingCountAsNone) {
  const FakeHost host;
  host.add_node(0, "0-3");
  host.add_node(1, "4-7");
  host.add_node(5, "8-9");
  host.add_gpu("0000:17:00.0", 1);
  host.add_gpu("0000:65:00.0", -1);
  host.add_gpu("0000:ca:00.0", 5);
  for (const std::vector<std::string>& gpus :
       std::vector<std::vector<std::string>>{{"0", "1"}, {"GPU-3f", "0"}, {"0"}, {"0", "7"}, {"0", "2"}, {"0", "-1"}}) {
    const CpuPlaces places = numa_places(host.root(), cpus(0, 8), gpus, 2);
    EXPECT_THAT(places.cpus, ElementsAre(cpus(0, 4), cpus(4, 8))) << gpus.back();
  }
}

TEST(CpuPlaces, NothingIsBoundWhereRanksCannotBeDealt) {
  const FakeHost host, without, damaged;
  host.add_node(0, "0-3");
  host.add_node(1, "4-7");
  host.add_node(2, "");  // memory alone
  damaged.add_node(0, "0-3");
  damaged.add_node(1, "4-");
  EXPECT_THAT(numa_places(host.root(), cpus(0, 8), {}, 3).cpus, IsEmpty());
  EXPECT_THAT(numa_places(host.root(), cpus(0, 8), {}, 1).cpus, IsEmpty());
  EXPECT_THAT(numa_places(host.root(), cpus(0, 4), {}, 2).cpus, IsEmpty());  // bound to one node already
  EXPECT_THAT(numa_places(without.root(), cpus(0, 8), {}, 2).cpus, IsEmpty());
  EXPECT_THAT(numa_places(damaged.root(), cpus(0, 8), {}, 2).cpus, IsEmpty());
  EXPECT_THAT(numa_places(host.root(), cpus(0, 8), {}, 2).cpus, ElementsAre(cpus(0, 4), cpus(4, 8)));
}

TEST(CpuPlaces, MoreRanksThanCpusHaveAThreadEach) {
  const FakeHost host;
  host.add_node(0, "0");
  host.add_node(1, "1");
  EXPECT_EQ(numa_places(host.root(), cpus(0, 2), {}, 6).threads, 1);
}

// The CPUs of a process, as the kernel writes them.
std::string out_of(const LaunchOptions& options, int& code) {
  ::testing::internal::CaptureStdout();
  code = launch(options);
  return ::testing::internal::GetCapturedStdout();
}

// Real ranks; on this host's own CPUs, of which there must be two.
TEST(CpuPlaces, RanksRunThere) {
  const std::vector<int> usable = usable_cpus();
  if (usable.size() < 2) GTEST_SKIP() << "this process may use one CPU";
  const FakeHost host;
  host.add_node(0, std::to_string(usable[0]));
  host.add_node(1, std::to_string(usable[1]));
  LaunchOptions options;
  options.nproc = 2;
  options.argv = {"/bin/sh", "-c", "grep Cpus_allowed_list /proc/self/status"};
  options.system_root = host.root();
  int code = 1;
  const std::string bound = out_of(options, code);
  EXPECT_EQ(code, 0);
  EXPECT_THAT(bound, HasSubstr("[rank 0] Cpus_allowed_list:\t" + std::to_string(usable[0]) + "\n"));
  EXPECT_THAT(bound, HasSubstr("[rank 1] Cpus_allowed_list:\t" + std::to_string(usable[1]) + "\n"));
  options.bind_numa = false;
  EXPECT_THAT(out_of(options, code), Not(HasSubstr("list:\t" + std::to_string(usable[0]) + "\n")));
  options.bind_numa = true;
  options.cores = {usable[1], usable[0]};  // the user's choice counts
  EXPECT_THAT(out_of(options, code), HasSubstr("[rank 0] Cpus_allowed_list:\t" + std::to_string(usable[1]) + "\n"));
}

}  // namespace
}  // namespace zeroshard
