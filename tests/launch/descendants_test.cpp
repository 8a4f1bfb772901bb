#include "launch/descendants.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <vector>

#include "launch/process_file.h"

namespace zeroshard {
namespace {

TEST(ProcessFile, OfAProcessThatHasEndedIsEmpty) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(0);
  ASSERT_GT(child, 0);
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  EXPECT_EQ(read_process_file(child, "stat"), "");
  EXPECT_EQ(process_name(child), "");
  EXPECT_NE(read_process_file(::getpid(), "stat"), "");
}

// A process that starts others, each of which ends at once, until it is killed.
class BusyParent {
 public:
  BusyParent() : pid_(::fork()) {
    if (pid_ != 0) return;
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    while (true) {
      const pid_t brief = ::fork();
      if (brief <= 0) ::_exit(0);
      ::waitpid(brief, nullptr, 0);
    }
  }
  ~BusyParent() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  BusyParent(const BusyParent&) = delete;
  BusyParent& operator=(const BusyParent&) = delete;
  pid_t pid() const { return pid_; }

 private:
  pid_t pid_;
};

// As on a machine with many jobs: processes end also between the opening of a file of theirs and its reading.
TEST(Descendants, ProcessesMayEndWhileTheyAreLookedAt) {
  const std::array<BusyParent, 4> busy;
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(1500);
  while (std::chrono::steady_clock::now() < end) {
    const std::vector<pid_t> found = children(::getpid());
    for (const BusyParent& parent : busy) EXPECT_NE(std::find(found.begin(), found.end(), parent.pid()), found.end());
  }
}

}  // namespace
}  // namespace zeroshard
