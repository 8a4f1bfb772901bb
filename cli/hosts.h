#pragma once
#include <optional>
#include <string>
#include <vector>

#include "launch/hostfile.h"
#include "reach.h"

namespace CLI {
class App;
}
namespace zeroshard {
struct LaunchOptions;
}

// Implements `zeroshard run --hostfile`, which starts a job on several hosts with one command.
namespace zeroshard::cli {

// The options that say which hosts run the job and how zeroshard reaches them. They have DeepSpeed's names.
struct HostArguments {
  std::string hostfile, include, exclude;
  Reach reach;
  std::optional<int> num_nodes, node_rank, num_gpus, nproc;
  std::optional<std::string> master_addr;
};

// Adds --launcher, --launcher_args and --ssh_port.
void add_host_options(CLI::App& run, HostArguments& arguments);

// Returns the hosts of a hostfile on which to start a job. This host can be among them. Returns no host if there is no
// hostfile, or if this host is the only one in it. Throws ValueError for wrong values of the options, for a wrong
// hostfile, and for a hostfile with a single host that is not this one.
std::vector<JobHost> other_hosts(const HostArguments& arguments);

// Starts the job on `hosts`, with the options of `run` that do not concern hosts, and restarts it as --max-restarts and
// --min-ranks say. Returns the job's exit code, or 128 + n after signal n.
int run_on_hosts(const CLI::App& run, std::vector<JobHost> hosts, HostArguments arguments,
                 const LaunchOptions& options);

}  // namespace zeroshard::cli
