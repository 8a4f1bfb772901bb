#pragma once
#include <optional>
#include <string>
#include <vector>

// Starts the ranks of a job on this host and supervises them. `zeroshard run` calls these functions.
namespace zeroshard {

struct LaunchOptions {
  int nproc = 1;  // ranks on this host
  int nnodes = 1, node_rank = 0;
  std::string job;  // with several hosts: node 0 refuses launchers of a job with another name; may be empty
  std::string master_addr = "127.0.0.1";
  // With one host: port of rank 0's store; 0: a free port. With several hosts: port at which the launchers meet, the
  // same on all hosts; 0: 29500. With several hosts, rank 0's store always gets a free port.
  int master_port = 0;
  double grace_period_s = 30;   // seconds from a signal to SIGKILL
  double stall_timeout_s = 10;  // seconds that a rank may be suspended (SIGSTOP); 0: no limit
  double hang_timeout_s = 0;    // seconds without progress after ranks have reported a step; 0: no limit
  int max_restarts = 0;         // largest number of restarts of a failed job
  int min_ranks = 0;            // smallest number of ranks of a restart; 0: as many as before
  // The number of times that the command for several hosts has restarted the job so far. Unset: no such command
  // controls this host. In this case, a job of several hosts cannot have max_restarts.
  std::optional<int> restarts;
  std::string log_dir;            // directory of rank-N.log with all output of rank N; empty: no files
  bool prefix_stdout = true;      // with several ranks, lines begin with the rank; false: only lines of stderr do
  std::vector<std::string> argv;  // argv of every rank; argv[0] is the path of the program
  int local_rank_at = 0;   // position in argv for "--local_rank=N", which DeepSpeed passes to each rank; 0: not passed
  std::vector<int> cores;  // CPUs to divide among the ranks, which are bound to them; empty: see bind_numa
  // true: if `cores` is empty, and the host has several ranks and several NUMA nodes, each rank is bound to the CPUs of
  // one node. That is the node of the rank's GPU if these nodes are known for all ranks. Otherwise, the ranks are
  // divided evenly among the nodes. If that is impossible, no rank is bound.
  bool bind_numa = true;
  // The directory that contains /sys and /proc, which describe NUMA nodes and GPUs. Tests use another one.
  std::string system_root = "/";
  bool signal_whole_group = true;  // true: signals go to a rank's process group; false: to its first process alone
};

// Runs the job and returns when all its processes have ended. Returns 0 if all ranks succeeded. Otherwise returns the
// exit code of the first rank that failed, 128 + n after signal n, or 1 if a rank hung or was suspended for too long.
// If a rank's program cannot be started, prints the reason and returns 1. Throws ValueError for options that cannot
// work, and Error if the launcher itself fails, for example because the hosts do not meet. The caller must be a process
// with one thread, because launch() forks. While launch() runs, it handles SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1,
// SIGUSR2, SIGTSTP and SIGCONT.
int launch(const LaunchOptions& options);
// Throws the ValueError that launch() would throw for wrong options, but starts nothing. Does not check whether
// `log_dir` can be written.
void check_launch_options(const LaunchOptions& options);

// Returns the real-time signal with which launch() requests a rank's stack trace; ZEROSHARD_STACK_SIGNAL has the same
// number. Python code may register faulthandler for this signal, too. If an Engine or World already exists, the code
// must pass chain=True, so that zeroshard's handler is called as well. Otherwise the code must pass chain=False,
// because with chain=True the signal's default action would run, which ends the process.
int stack_dump_signal();

// Returns the number of visible_gpus(). Works without a driver.
int count_gpus();
// Returns the names of the visible CUDA devices. If CUDA_VISIBLE_DEVICES is unset, these are the numbers of the host's
// devices, from 0 on. Otherwise, these are the entries of that variable up to the first invalid one. If the host has
// devices and no entry is a MIG device (a part of a GPU), entries beyond the number of devices are left out.
std::vector<std::string> visible_gpus();
// Returns whether this host has any NVIDIA GPU, visible or not.
bool has_gpus();
// Return the number of CPUs that this process may use, and the numbers of these CPUs. If the system does not tell,
// count_cpus() returns the number of all CPUs, and usable_cpus() returns no numbers.
int count_cpus();
std::vector<int> usable_cpus();

struct Program {
  std::string script;  // a path, a program's name or a module's name
  std::vector<std::string> arguments;
  bool module = false;     // true: `script` is a Python module
  bool no_python = false;  // true: run `script` itself, even if its name ends in .py
};

// Returns the argv that runs a program: `python -u` for a module or a name that ends in .py, else the program itself. A
// program without a directory in its name is taken from the current directory, else from PATH. Python is taken from
// VIRTUAL_ENV, else from the directory of this executable, else from PATH. Throws ValueError if the script is missing
// or cannot be run, if the name of a script or module is empty, if a module's name begins with "-", and if there is no
// Python.
std::vector<std::string> resolve(const Program& program);

// The values of PYTHONPATH, where Python looks for modules, and PATH, where the shell looks for programs.
struct SearchPaths {
  std::string python_path, path;
};

// Returns this process's paths with one folder put at the front of each, so that `import deepspeed` and the program
// `deepspeed` find zeroshard. Starts the Python of resolve() to find these folders. Returns nothing if there is no
// Python, or if it has no zeroshard.
std::optional<SearchPaths> paths_with_deepspeed();
// Returns this process's paths without the folders that paths_with_deepspeed() adds.
SearchPaths paths_without_deepspeed();

}  // namespace zeroshard
