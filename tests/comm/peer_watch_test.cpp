#include "comm/peer_watch.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>

namespace zeroshard {
namespace {

// A process that does nothing, for the length of a test.
class Idle {
 public:
  Idle() : pid_(::fork()) {
    if (pid_ == 0)
      for (;;) ::pause();
  }
  ~Idle() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  Idle(const Idle&) = delete;
  Idle& operator=(const Idle&) = delete;

  ProcessId id() const { return {pid_, 0}; }
  void stop() const {
    ::kill(pid_, SIGSTOP);
    ::waitpid(pid_, nullptr, WUNTRACED);
  }
  void end() const {
    ::kill(pid_, SIGKILL);
    siginfo_t info;
    ::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOWAIT);  // remains as a zombie
  }
  std::string name(int rank) const { return "rank " + std::to_string(rank) + " (pid " + std::to_string(pid_) + ")"; }

 private:
  pid_t pid_;
};

TEST(PeerWatch, NamesEveryRankInTroubleOnceOneIs) {
  const Idle first, second, third;
  PeerWatch watch({first.id(), second.id(), third.id(), {}}, 60'000);
  EXPECT_EQ(watch.check_all(), "");
  second.stop();
  ::usleep(150'000);  // it looks again after 100 ms
  EXPECT_EQ(watch.check_all(), "") << "one that is stopped for a moment is at nobody's expense";
  first.end();
  ::usleep(150'000);
  const std::string trouble = watch.check_all();
  EXPECT_NE(trouble.find(first.name(0) + " died"), std::string::npos) << trouble;
  EXPECT_NE(trouble.find(second.name(1) + " has been stopped"), std::string::npos) << trouble;
  EXPECT_EQ(trouble.find("rank 2"), std::string::npos) << trouble;
}

}  // namespace
}  // namespace zeroshard
