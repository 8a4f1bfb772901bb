#pragma once
#include <optional>
#include <string>
#include <vector>

// Starts the ranks of a job on this host and watches over them: the functions behind `zeroshard run`.
namespace zeroshard {

struct LaunchOptions {
  int nproc = 1;  // ranks on this host
  int nnodes = 1, node_rank = 0;
  std::string job;  // of several hosts: a name by which launchers of other jobs are told apart; empty: none
  std::string master_addr = "127.0.0.1";
  int master_port = 0;            // 0: a free one; with several hosts, one that all know
  double grace_period_s = 30;     // from a signal to SIGKILL
  double stall_timeout_s = 10;    // how long a rank may be stopped; 0: without limit
  double hang_timeout_s = 0;      // how long ranks that have reported a step may make no progress; 0: without limit
  int max_restarts = 0;           // how often a job that fails is restarted; only on one host
  int min_ranks = 0;              // the smallest number of ranks for a restart; 0: as many as before
  std::string log_dir;            // directory for rank-N.log with everything that rank N writes; empty: none
  bool prefix_stdout = true;      // with several ranks, lines get the rank as prefix; else all is passed on unchanged
  std::vector<std::string> argv;  // of every rank; argv[0] is the path of the program
  int local_rank_at = 0;          // where in argv each rank gets "--local_rank=N", as from DeepSpeed; 0: nowhere
  std::vector<int> cores;  // CPUs that the ranks divide among themselves, each bound to its part; empty: all share
  bool bind_numa = true;   // without `cores`: each of several ranks runs on one NUMA node, that of its GPU
  std::string system_root = "/";   // below which /sys and /proc tell of NUMA nodes and GPUs; another one in tests
  bool signal_whole_group = true;  // signals go to all processes of a rank, not only to its first
};

// Runs the job and returns when it has no process left: 0, the code of the first rank that failed, or 128 + n after
// signal n. Throws ValueError for options that cannot work, Error when a program cannot be started. Call it from a
// process with one thread: it forks, and handles SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2 and SIGTSTP while
// it runs.
int launch(const LaunchOptions& options);
// Throws the ValueError of launch(), and starts nothing.
void check_launch_options(const LaunchOptions& options);

// The real-time signal by which launch() requests a rank's stack; ZEROSHARD_STACK_SIGNAL has the same number. Python
// code may register its faulthandler on it too. Once an engine or world exists, use chain=True, so that its handler is
// called as well. Before, use chain=False: chaining would run the default action, which ends the process.
int stack_dump_signal();

// CUDA devices of this host that CUDA_VISIBLE_DEVICES leaves visible; needs no driver.
int count_gpus();
// Their names, as CUDA_VISIBLE_DEVICES has them; without that variable, numbers from 0.
std::vector<std::string> visible_gpus();
// Whether this host has any, visible or not.
bool has_gpus();
// The number of CPUs this process may use, and which.
int count_cpus();
std::vector<int> usable_cpus();

struct Program {
  std::string script;  // a file, or a module's name
  std::vector<std::string> arguments;
  bool module = false;     // `script` is a Python module
  bool no_python = false;  // run `script` itself whatever its name, looked up in PATH
};

// The argv that runs a program: with `python -u` if it is a module or ends in .py, else the program itself. Python is
// taken from VIRTUAL_ENV, else from beside this executable, else it is the first in PATH. Throws ValueError when
// something is missing.
std::vector<std::string> resolve(const Program& program);

// Where Python looks for modules and the shell for programs: the values of PYTHONPATH and PATH.
struct SearchPaths {
  std::string python_path, path;
};

// This process's values with the folders first by which `import deepspeed` and the program deepspeed are zeroshard.
// Nothing when the Python of resolve() has no zeroshard: it is started, and asked.
std::optional<SearchPaths> paths_with_deepspeed();
// This process's values without these folders.
SearchPaths paths_without_deepspeed();

}  // namespace zeroshard
