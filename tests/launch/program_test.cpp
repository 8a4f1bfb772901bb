#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "zeroshard/error.h"
#include "zeroshard/launch.h"

namespace zeroshard {
namespace {

using ::testing::ElementsAre;
using ::testing::EndsWith;

class ProgramTest : public ::testing::Test {
 protected:
  ProgramTest() : folder_(std::filesystem::path(::testing::TempDir()) / ("program" + std::to_string(::getpid()))) {
    std::filesystem::create_directories(folder_ / "bin");
    ::setenv("VIRTUAL_ENV", folder_.c_str(), 1);
    make("bin/python", true);
  }
  ~ProgramTest() override {
    ::unsetenv("VIRTUAL_ENV");
    std::filesystem::remove_all(folder_);
  }

  std::string make(const std::string& name, bool executable) {
    std::ofstream(folder_ / name) << "#!/bin/sh\n";
    if (executable) std::filesystem::permissions(folder_ / name, std::filesystem::perms::owner_all);
    return folder_ / name;
  }
  std::string python() const { return folder_ / "bin/python"; }

  std::filesystem::path folder_;
};

TEST_F(ProgramTest, ScriptsRunWithTheEnvironmentsPython) {
  const std::string script = make("train.py", false);
  EXPECT_THAT(resolve({.script = script, .arguments = {"--lr", "", "a b"}}),
              ElementsAre(python(), "-u", script, "--lr", "", "a b"));
}

TEST_F(ProgramTest, ModulesRunWithDashM) {
  EXPECT_THAT(resolve({.script = "pkg.train", .arguments = {"x"}, .module = true}),
              ElementsAre(python(), "-u", "-m", "pkg.train", "x"));
  EXPECT_THROW(resolve({.script = "-c", .arguments = {}, .module = true}), ValueError);
}

TEST_F(ProgramTest, OtherProgramsRunThemselves) {
  const std::string program = make("train", true);
  EXPECT_THAT(resolve({.script = program, .arguments = {"x"}}), ElementsAre(program, "x"));
  const std::string script = make("train.py", true);
  EXPECT_THAT(resolve({.script = script, .arguments = {}, .no_python = true}), ElementsAre(script));
  EXPECT_THAT(resolve({.script = "sh", .arguments = {}}), ElementsAre(EndsWith("/sh")));
}

TEST_F(ProgramTest, WithoutEnvironmentPythonComesFromThePath) {
  ::setenv("VIRTUAL_ENV", "/nonexistent", 1);
  const std::string script = make("train.py", false), path = std::getenv("PATH");
  make("bin/python3", true);
  ::setenv("PATH", (folder_ / "bin").c_str(), 1);
  EXPECT_THAT(resolve({.script = script, .arguments = {}}), ElementsAre(folder_ / "bin/python3", "-u", script));
  ::setenv("PATH", "/nonexistent", 1);
  EXPECT_THROW(resolve({.script = script, .arguments = {}}), ValueError);
  ::setenv("PATH", path.c_str(), 1);
}

TEST_F(ProgramTest, RefusesWhatCannotRun) {
  for (const Program& program : {Program{.script = "", .arguments = {}},
                                 {.script = "no-such.py", .arguments = {}},
                                 {.script = "no-such-program", .arguments = {}},
                                 {.script = make("data.txt", false), .arguments = {}},
                                 {.script = folder_ / "bin", .arguments = {}},
                                 {.script = "/no/such", .arguments = {}, .no_python = true}}) {
    EXPECT_THROW(resolve(program), ValueError) << program.script;
  }
}

TEST(CountGpus, FollowsCudaVisibleDevices) {
  const int devices = [] {
    ::unsetenv("CUDA_VISIBLE_DEVICES");
    return count_gpus();
  }();
  const std::pair<const char*, int> cases[] = {{"", 0},    {"-1", 0},     {"0", 1},
                                               {"0,1", 2}, {"1,-1,2", 1}, {"GPU-a,GPU-b", 2}};
  for (const auto& [visible, count] : cases) {
    ::setenv("CUDA_VISIBLE_DEVICES", visible, 1);
    EXPECT_EQ(count_gpus(), devices > 0 ? std::min(devices, count) : count) << visible;
  }
  ::unsetenv("CUDA_VISIBLE_DEVICES");
}

}  // namespace
}  // namespace zeroshard
