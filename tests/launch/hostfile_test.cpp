// Hostfiles and the filters of their hosts: what they mean, what is refused, and any bytes.
#include "launch/hostfile.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "support/mutation.h"
#include "zeroshard/error.h"

namespace zeroshard {
namespace {

constexpr std::string_view kHostfileBytes = "onetwmslt=@:,# \n-0123456789$;\xff";

std::vector<JobHost> read(const std::string& text) {
  const std::string path = ::testing::TempDir() + "hostfile_test";
  std::ofstream(path) << text;
  return read_hostfile(path);
}

// "one:0,1@two:3"
std::string shown(const std::vector<JobHost>& hosts) {
  std::string text;
  for (const JobHost& host : hosts) {
    text += (text.empty() ? "" : "@") + host.name;
    for (size_t i = 0; i < host.slots.size(); ++i) text += (i == 0 ? ":" : ",") + std::to_string(host.slots[i]);
  }
  return text;
}

TEST(Hostfile, NamesHostsAndTheirSlots) {
  const auto hosts = read("# ours\n\n  one slots=2\r\nme@two.example slots=1 # and more\nfe80::1\tslots=3");
  EXPECT_EQ(shown(hosts), "one:0,1@me@two.example:0@fe80::1:0,1,2");
  EXPECT_EQ(hosts[1].host(), "two.example");
  EXPECT_EQ(hosts[2].line, 5);
}

TEST(Hostfile, FiltersChooseHostsAndSlotsInTheOrderOfTheFile) {
  const auto hosts = read("one slots=3\nme@two slots=2\nfe80::1 slots=2\n");
  struct Case {
    const char *include, *exclude, *left;
  };
  for (const Case& each : std::vector<Case>{{"", "", "one:0,1,2@me@two:0,1@fe80::1:0,1"},
                                            {"fe80::1@one:2,0", "", "one:0,2@fe80::1:0,1"},
                                            {"one:1@one:1@one:2", "", "one:1,2"},
                                            {"me@two:1@fe80::1:0", "", "me@two:1@fe80::1:0"},
                                            {"me@two@one", "", "one:0,1,2@me@two:0,1"},
                                            {"", "one@me@two:0", "me@two:1@fe80::1:0,1"},
                                            {"", "fe80::1:0,1", "one:0,1,2@me@two:0,1"}})
    EXPECT_EQ(shown(chosen_hosts(hosts, each.include, each.exclude)), each.left) << each.include << each.exclude;
  EXPECT_TRUE(chosen_hosts(hosts, "one", "")[0].uses_all());
  EXPECT_FALSE(chosen_hosts(hosts, "one:0,1", "")[0].uses_all());
}

// Whatever the bytes are, what is read has names that are safe on a command line, and slots that exist.
TEST(Hostfile, MutatedFilesAndFiltersAreRefusedOrSound) {
  const std::string file = "# x\none slots=3\nme@two slots=2\n", filter = "one:0,2@me@two:1";
  int sound = 0;
  for (const uint64_t seed : zeroshard::testing::seeds(3000)) {
    zeroshard::testing::SeededRandom random(seed);
    const bool of_file = seed % 2 == 0;
    try {
      const auto hosts = read(of_file ? zeroshard::testing::mutated(file, kHostfileBytes, random) : file);
      for (const JobHost& host :
           chosen_hosts(hosts, of_file ? "" : zeroshard::testing::mutated(filter, kHostfileBytes, random), "")) {
        EXPECT_NE(host.name[0], '-');
        EXPECT_EQ(host.name.find_first_of(" \n$`;'\"\\&|<>(){}*?~#%=,\t"), host.name.npos) << host.name;
        ASSERT_FALSE(host.slots.empty());
        EXPECT_LT(host.slots.back(), host.all_slots);
      }
      ++sound;
    } catch (const ValueError&) {
    }
  }
  EXPECT_TRUE(sound > 10 || zeroshard::testing::asked_seed());
}

}  // namespace
}  // namespace zeroshard
