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
  const std::vector<std::string>& environment;  // "NAME=value"
  std::array<int, 3> stdio;                     // become its descriptors 0, 1 and 2
  sigset_t signal_mask;
  int inherited_fd = -1;          // stays open in it, with the same number
  std::optional<cpu_set_t> cpus;  // on which it runs; nothing: on all that this process may use
};

// Starts a process in a group of its own, which the kernel kills when this process dies. argv[0] is the path. Throws
// Error with the reason when it cannot be executed. This process must have only one thread.
pid_t spawn(const ProcessSpec& spec);

// How a process ended: `signal` is 0 unless one killed it.
struct ProcessExit {
  int code = 0, signal = 0;
  double at_s = 0;  // after the start of the job
  bool failed() const { return code != 0 || signal != 0; }
  // The exit code that a shell would report.
  int shell_code() const { return signal != 0 ? 128 + signal : code; }
};

// One rank, from its supervisor's side.
struct RankProcess {
  int rank = 0;
  pid_t pid = -1;
  std::optional<ProcessExit> exit;
  std::optional<double> stopped_since_s;  // set while it is stopped
  int stop_signal = 0;
};

// "SIGTERM"; "signal 40" when it has no name.
std::string signal_name(int signal);

}  // namespace zeroshard
