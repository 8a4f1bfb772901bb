#include "launch/descendants.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <vector>

#include "launch/process_file.h"

namespace zeroshard {
namespace {

TEST(ProcessFile, OfAProcessThatHasEndedIsEmpty) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(0);
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  EXPECT_EQ(read_process_file(child, "stat"), "");
  EXPECT_EQ(process_name(child), "");
  EXPECT_NE(read_process_file(::getpid(), "stat"), "");
}

// Others start and end all the time, as on a machine with many jobs: also between the opening of a file and its
// reading.
TEST(Descendants, ProcessesMayEndWhileTheyAreLookedAt) {
  std::vector<pid_t> busy;
  for (int i = 0; i < 4; ++i) {
    const pid_t child = ::fork();
    if (child != 0) {
      busy.push_back(child);
      continue;
    }
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    while (true) {
      const pid_t brief = ::fork();
      if (brief == 0) ::_exit(0);
      if (brief > 0) ::waitpid(brief, nullptr, 0);
    }
  }
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(1500);
  while (std::chrono::steady_clock::now() < end) {
    std::vector<pid_t> found = children(::getpid());
    for (const pid_t child : busy) EXPECT_NE(std::find(found.begin(), found.end(), child), found.end());
  }
  for (const pid_t child : busy) ::kill(child, SIGKILL);
  for (const pid_t child : busy) ::waitpid(child, nullptr, 0);
}

}  // namespace
}  // namespace zeroshard
