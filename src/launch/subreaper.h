#pragma once
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <vector>

#include "launch/descendants.h"

namespace zeroshard {

// While an object lives, a process below this one that loses its parent becomes a child of this process, unless there
// is a subreaper between them.
class Subreaper {
 public:
  Subreaper() : before_(children(::getpid())) {
    ::prctl(PR_GET_CHILD_SUBREAPER, &was_);
    ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  }
  ~Subreaper() { ::prctl(PR_SET_CHILD_SUBREAPER, was_); }
  Subreaper(const Subreaper&) = delete;

  // Kills all processes below this one, except the children that existed before this object and the processes below
  // them. Returns when none is left.
  void kill_all() const {
    for (;;) {
      const std::vector<pid_t> found = descendants(::getpid(), before_);
      if (found.empty()) return;
      for (const pid_t pid : found) {
        ::kill(pid, SIGKILL);
        ::waitpid(pid, nullptr, WNOHANG);
      }
      ::usleep(10'000);
    }
  }

 private:
  std::vector<pid_t> before_;
  int was_ = 0;
};

}  // namespace zeroshard
