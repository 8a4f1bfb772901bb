#pragma once
#include <optional>
#include <string>
#include <vector>

// Starts the ranks of a job on this host and supervises them. `zeroshard run` calls these functions.
namespace zeroshard {

struct LaunchOptions {
  int nproc = 1;  // ranks on this host
  int nnodes = 1, node_rank = 0;
  std::string job;  // with several hosts: node 0 refuses launchers of a job with another name; empty: no check
  std::string master_addr = "127.0.0.1";
  int master_port = 0;  // port of rank 0's store; 0: a free port; with several hosts: a port that all of them know
  double grace_period_s = 30;   // seconds from a signal to SIGKILL
  double stall_timeout_s = 10;  // seconds that a rank may be stopped; 0: no limit
  double hang_timeout_s = 0;    // seconds without progress after ranks have reported a step; 0: no limit
  int max_restarts = 0;         // how often a failed job is restarted
  int min_ranks = 0;            // smallest number of ranks of a restart; 0: as many as before
  // How often the command for several hosts has restarted the job so far. Unset: this command starts one host alone. A
  // job of several hosts then cannot have max_restarts.
  std::optional<int> restarts;
  std::string log_dir;        // directory of rank-N.log with all output of rank N; empty: no files
  bool prefix_stdout = true;  // prefix lines with the rank if there are several ranks; false: pass output on unchanged
  std::vector<std::string> argv;  // argv of every rank; argv[0] is the path of the program
  int local_rank_at = 0;   // position in argv for "--local_rank=N", which DeepSpeed passes to each rank; 0: not passed
  std::vector<int> cores;  // CPUs to divide among the ranks, which are bound to them; empty: all ranks share all CPUs
  bool bind_numa = true;   // true: without `cores`, binds each of several ranks to one NUMA node, if possible its GPU's
  // The directory that contains /sys and /proc, which describe NUMA nodes and GPUs. Tests use another one.
  std::string system_root = "/";
  bool signal_whole_group = true;  // true: signals go to all processes of a rank; false: to its first process alone
};

// Runs the job and returns when all its processes have ended. Returns 0, the exit code of the first rank that failed,
// or 128 + n after signal n. Throws ValueError for options that cannot work, and Error if a program cannot be started.
// The caller must be a process with one thread, because launch() forks. While launch() runs, it handles SIGINT,
// SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2 and SIGTSTP.
int launch(const LaunchOptions& options);
// Throws the ValueError that launch() would throw for wrong options, but starts nothing.
void check_launch_options(const LaunchOptions& options);

// Returns the real-time signal with which launch() requests a rank's stack trace; ZEROSHARD_STACK_SIGNAL has the same
// number. Python code may register faulthandler for this signal, too. If an Engine or World exists at that time, the
// code must pass chain=True, so that zeroshard's handler is called as well. If none exists, the code must pass
// chain=False, because chaining would run the signal's default action, which ends the process.
int stack_dump_signal();

// Returns the number of CUDA devices of this host that CUDA_VISIBLE_DEVICES leaves visible. Works without a driver.
int count_gpus();
// Returns the names of the visible devices as CUDA_VISIBLE_DEVICES has them, or the numbers from 0 on if that variable
// is unset.
std::vector<std::string> visible_gpus();
// Returns whether this host has any GPU, visible or not.
bool has_gpus();
// Return how many CPUs this process may use, and their numbers.
int count_cpus();
std::vector<int> usable_cpus();

struct Program {
  std::string script;  // a path, a program's name or a module's name
  std::vector<std::string> arguments;
  bool module = false;     // `script` is a Python module
  bool no_python = false;  // run `script` itself, even if its name ends in .py, and look it up in PATH
};

// Returns the argv that runs a program: `python -u` for a module or a name that ends in .py, else the program itself.
// Python is taken from VIRTUAL_ENV, else from the directory of this executable, else from PATH. Throws ValueError if
// the script, the module's name or Python is missing.
std::vector<std::string> resolve(const Program& program);

// The values of PYTHONPATH, where Python looks for modules, and PATH, where the shell looks for programs.
struct SearchPaths {
  std::string python_path, path;
};

// Returns this process's paths with one folder put at the front of each, so that `import deepspeed` and the program
// `deepspeed` find zeroshard. Returns nothing if the Python of resolve() has no zeroshard; the function starts that
// Python to find out.
std::optional<SearchPaths> paths_with_deepspeed();
// Returns this process's paths without the folders that paths_with_deepspeed() adds.
SearchPaths paths_without_deepspeed();

}  // namespace zeroshard
