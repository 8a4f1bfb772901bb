#include "launch/rank_process.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/format.h"
#include "base/unique_fd.h"
#include "zeroshard/error.h"

namespace zeroshard {
namespace {

std::vector<char*> pointers(const std::vector<std::string>& strings) {
  std::vector<char*> result;
  for (const std::string& string : strings) result.push_back(const_cast<char*>(string.c_str()));
  result.push_back(nullptr);
  return result;
}

bool place_stdio(std::array<int, 3> stdio) {
  // First moves the descriptors away from 0, 1 and 2, so that no dup2() overwrites a descriptor that is still needed.
  for (int& fd : stdio) {
    fd = ::fcntl(fd, F_DUPFD_CLOEXEC, 3);
    if (fd < 0) return false;
  }
  for (int target = 0; target < 3; ++target) {
    if (::dup2(stdio[target], target) < 0) return false;
  }
  return true;
}

// Turns the child process into the program. Runs in the child, in which only async-signal-safe calls are allowed.
// Returns only if something failed, with errno set.
void become(const ProcessSpec& spec, pid_t parent, char* const* argv, char* const* environment) {
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(1);  // the parent died before the call of prctl() above
  if (!place_stdio(spec.stdio)) return;
  if (spec.cpus && ::sched_setaffinity(0, sizeof *spec.cpus, &*spec.cpus) != 0) return;
  if (spec.inherited_fd >= 0) ::fcntl(spec.inherited_fd, F_SETFD, 0);
  for (const int signal : {SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGTSTP, SIGCHLD, SIGPIPE, SIGXFSZ}) {
    ::signal(signal, SIG_DFL);
  }
  ::sigprocmask(SIG_SETMASK, &spec.signal_mask, nullptr);
  ::execve(argv[0], argv, environment);
}

}  // namespace

pid_t spawn(const ProcessSpec& spec) {
  const std::vector<char*> argv = pointers(spec.argv), environment = pointers(spec.environment);
  Pipe failure = make_pipe();  // closed by a successful execve(); otherwise carries errno
  const pid_t parent = ::getpid(), pid = ::fork();
  if (pid < 0) throw_errno("cannot start a process");
  if (pid == 0) {
    become(spec, parent, argv.data(), environment.data());
    const int error = errno;
    [[maybe_unused]] const ssize_t written = ::write(failure.write_end.get(), &error, sizeof error);
    ::_exit(127);
  }
  ::setpgid(pid, pid);  // the parent does it, too, so that the group exists when this function returns
  failure.write_end.reset();
  int error = 0;
  ssize_t got = 0;
  do got = ::read(failure.read_end.get(), &error, sizeof error);
  while (got < 0 && errno == EINTR);
  if (got == sizeof error) {
    ::waitpid(pid, nullptr, 0);
    throw Error(concat("cannot run '", spec.argv[0], "': ", std::strerror(error)));
  }
  return pid;
}

std::string signal_name(int signal) {
  const char* name = ::sigabbrev_np(signal);
  return name != nullptr ? std::string("SIG") + name : concat("signal ", signal);
}

}  // namespace zeroshard
