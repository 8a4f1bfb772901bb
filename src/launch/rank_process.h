#pragma once
#include <sched.h>
#include <signal.h>
#include <sys/types.h>

#include <array>
#include <optional>
#include <string>
#include <vector>

namespace zeroshard {

struct ProcessSpec {
  const std::vector<std::string>& argv;
  const std::vector<std::string>& environment;  // "NAME=value" strings
  std::array<int, 3> stdio;                     // they become the process's descriptors 0, 1 and 2
  sigset_t signal_mask;
  int inherited_fd = -1;          // stays open in the process, with the same number; -1: none
  std::optional<cpu_set_t> cpus;  // CPUs on which the process runs; unset: all CPUs that this process may use
};

// Starts a process in a process group of its own. The kernel kills the new process when this one dies. argv[0] is the
// path of the program. Throws Error with the reason if the process cannot be started or the program cannot be executed.
// The calling process must have a single thread.
pid_t spawn(const ProcessSpec& spec);

// Says how a process ended. `signal` is the signal that killed it, or 0 if none did.
struct ProcessExit {
  int code = 0, signal = 0;
  double at_s = 0;  // in seconds after this start of the ranks
  bool failed() const { return code != 0 || signal != 0; }
  // Returns the exit code that a shell would report.
  int shell_code() const { return signal != 0 ? 128 + signal : code; }
};

// One rank, as its supervisor sees it.
struct RankProcess {
  int rank = 0;
  pid_t pid = -1;
  std::optional<ProcessExit> exit;
  std::optional<double> stopped_since_s;  // set while the rank is stopped
  int stop_signal = 0;
};

// Returns a name such as "SIGTERM", or "signal 40" if the signal has no name.
std::string signal_name(int signal);

}  // namespace zeroshard
