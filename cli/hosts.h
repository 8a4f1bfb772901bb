#pragma once
#include <optional>
#include <string>
#include <vector>

#include "launch/hostfile.h"

namespace CLI {
class App;
}
namespace zeroshard {
struct LaunchOptions;
}

// `zeroshard run --hostfile`: one command for a job of several hosts.
namespace zeroshard::cli {

// Which hosts, and how they are reached, in DeepSpeed's words.
struct HostArguments {
  std::string hostfile, include, exclude, launcher = "ssh", launcher_args;
  std::optional<int> num_nodes, node_rank, num_gpus, nproc, ssh_port;
  std::optional<std::string> master_addr;
};

// Adds --launcher, --launcher_args and --ssh_port.
void add_host_options(CLI::App& run, HostArguments& arguments);

// The hosts of a job that is to be started on several, or on another one; none if it runs on this host alone. Throws
// ValueError.
std::vector<JobHost> other_hosts(const HostArguments& arguments);

// Starts the job on `hosts` with the options of `run` that are not about hosts. Returns its exit code.
int run_on_hosts(const CLI::App& run, const std::vector<JobHost>& hosts, const HostArguments& arguments,
                 const LaunchOptions& options);

}  // namespace zeroshard::cli
