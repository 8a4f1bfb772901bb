// `zeroshard run`: starts the ranks of a training script.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <optional>
#include <utility>

#include "base/format.h"
#include "base/log.h"
#include "commands.h"
#include "hosts.h"
#include "launch/host_relay.h"
#include "numbers.h"
#include "slots.h"
#include "supervisor_options.h"
#include "usage_error.h"
#include "zeroshard/error.h"
#include "zeroshard/launch.h"

namespace zeroshard::cli {
namespace {

struct RunArguments {
  HostArguments hosts;
  std::string each_rank_log, bind_core_list;
  LaunchOptions launch;  // some options set members directly; to_options() sets the others
  bool bind_cores = false, from_stdin = false;
  bool module = false, no_python = false, no_deepspeed = false;
  bool add_local_rank = false, no_local_rank = false;  // if both are true, no_local_rank counts
};

// Returns `wanted`, the number of ranks for --num_gpus or for the slots of a hostfile with one host. If the host has no
// GPU, logs that the ranks run on CPUs. Throws ValueError if the host has GPUs but fewer than `wanted` are visible,
// because DeepSpeed's launcher gives each rank a GPU of its own.
int ranks_for_gpus(int wanted) {
  const int gpus = count_gpus();
  if (wanted <= gpus) return wanted;
  if (!has_gpus()) {
    log(LogLevel::kInfo, concat(wanted, " GPUs are asked for, and this host has none: ", wanted,
                                wanted == 1 ? " rank" : " ranks", " on its CPUs"));
    return wanted;
  }
  throw ValueError(concat("--num_gpus is ", wanted, " but this host has ", gpus,
                          " visible; --nproc starts that many ranks on any device"));
}

void set_search_paths(bool with_deepspeed) {
  const std::optional<SearchPaths> with = with_deepspeed ? paths_with_deepspeed() : std::nullopt;
  if (with_deepspeed && !with) return;
  const SearchPaths paths = with ? *with : paths_without_deepspeed();
  for (const auto& [name, value] : {std::pair("PYTHONPATH", paths.python_path), std::pair("PATH", paths.path)}) {
    value.empty() ? ::unsetenv(name) : ::setenv(name, value.c_str(), 1);
  }
}

// Makes only the GPUs that --include or --exclude chooses visible to the ranks. Returns the number of these GPUs,
// because each gets one rank.
int choose_gpus(const RunArguments& arguments) {
  const std::vector<std::string> chosen = chosen_gpus(arguments.hosts.include, arguments.hosts.exclude, visible_gpus());
  std::string list;
  for (const std::string& gpu : chosen) list += (list.empty() ? "" : ",") + gpu;
  ::setenv("CUDA_VISIBLE_DEVICES", list.c_str(), 1);
  return static_cast<int>(chosen.size());
}

int ranks_of(const RunArguments& arguments) {
  const HostArguments& hosts = arguments.hosts;
  const bool filtered = !hosts.include.empty() || !hosts.exclude.empty();
  if (!hosts.include.empty() && !hosts.exclude.empty()) throw ValueError("give --include or --exclude, not both");
  if (filtered && (hosts.nproc || hosts.num_gpus)) {
    throw ValueError(
        "--include and --exclude choose GPUs, one rank for each: give them without --nproc and --num_gpus");
  }
  if (filtered) return choose_gpus(arguments);
  if (hosts.nproc) return *hosts.nproc;
  if (hosts.num_gpus) return ranks_for_gpus(*hosts.num_gpus);
  return hosts.hostfile.empty() ? std::max(1, count_gpus())
                                : ranks_for_gpus(read_hostfile(hosts.hostfile)[0].all_slots);
}

std::vector<int> cores_of(const RunArguments& arguments) {
  if (!arguments.bind_core_list.empty()) return parse_cores(arguments.bind_core_list);
  return arguments.bind_cores ? usable_cpus() : std::vector<int>{};
}

// Returns SCRIPT and its arguments. Throws ValueError if SCRIPT is missing or an unknown option precedes it.
std::vector<std::string> script_of(const CLI::App& app) {
  std::vector<std::string> rest = app.remaining();
  if (rest.empty()) throw ValueError("which script? zeroshard run [OPTIONS] SCRIPT [ARGS...]");
  if (rest.front().starts_with('-')) {
    throw ValueError(unknown_option(app, rest.front()) + " (for a script of that name: ./" + rest.front() + ")");
  }
  return rest;
}

LaunchOptions to_options(const CLI::App& app, const RunArguments& arguments) {
  const std::vector<std::string> rest = script_of(app);
  LaunchOptions options = arguments.launch;
  options.nproc = ranks_of(arguments);
  options.nnodes = arguments.hosts.num_nodes.value_or(1);
  options.node_rank = arguments.hosts.node_rank.value_or(0);
  options.cores = cores_of(arguments);
  if (!arguments.each_rank_log.empty() && arguments.each_rank_log != "None") options.log_dir = arguments.each_rank_log;
  if (options.nnodes > 1 && !arguments.hosts.master_addr) {
    throw ValueError("--nnodes is " + std::to_string(options.nnodes) + ": give --master_addr, the host of rank 0");
  }
  if (arguments.hosts.master_addr) options.master_addr = *arguments.hosts.master_addr;

  Program program{.script = rest.front(), .arguments = {rest.begin() + 1, rest.end()}};
  program.module = arguments.module;
  program.no_python = arguments.no_python;
  set_search_paths(!arguments.no_deepspeed);
  options.argv = resolve(program);
  if (arguments.add_local_rank && !arguments.no_local_rank) {
    options.local_rank_at = static_cast<int>(options.argv.size() - program.arguments.size());
  }
  options.signal_whole_group = !program.module && (program.no_python || !program.script.ends_with(".py"));
  return options;
}

int start(const CLI::App& run, const RunArguments& arguments) {
  if (arguments.from_stdin) return follow_order(STDIN_FILENO);
  script_of(run);
  if (arguments.hosts.nproc && arguments.hosts.num_gpus) throw ValueError("give --nproc or --num_gpus, not both");
  const std::vector<JobHost> hosts = other_hosts(arguments.hosts);
  return hosts.empty() ? launch(to_options(run, arguments))
                       : run_on_hosts(run, hosts, arguments.hosts, arguments.launch);
}

}  // namespace

void add_run_command(CLI::App& app) {
  CLI::App* run = app.add_subcommand("run", "Starts one process per rank, watches them and ends them together");
  run->footer(
      "zeroshard run [OPTIONS] SCRIPT [ARGS...]: all that follows SCRIPT belongs to it.\n"
      "Each rank gets RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, as from torchrun. When one fails, "
      "the\n"
      "others are ended, and what failed first is reported.");
  run->prefix_command();
  auto arguments = std::make_shared<RunArguments>();  // shared, so that it lives as long as the callback
  RunArguments& a = *arguments;
  add_int(*run, "--nproc,--nproc_per_node,--nproc-per-node", kRanksPerHost, a.hosts.nproc,
          "Ranks on this host (default: one per GPU)");
  add_int(*run, "--num_gpus,--num-gpus,--num_accelerators", kRanksPerHost, a.hosts.num_gpus,
          "The same, refused when there are fewer GPUs; CPU ranks on a host without any");
  add_int(*run, "--master_port,--master-port", {.min = 0}, a.launch.master_port,
          "Port of rank 0's store (default: a free one)");
  run->add_flag("-m,--module", a.module, "SCRIPT is a Python module");
  run->add_flag("--no_python,--no-python", a.no_python, "SCRIPT is a program, looked up in PATH");
  run->add_option("--include,-i", a.hosts.include,
                  "GPUs to use, one rank for each: localhost:0,2, or host1:0,2@host2 of a hostfile");
  run->add_option("--exclude,-e", a.hosts.exclude, "GPUs to leave out: localhost:1");
  run->add_option("--hostfile,-H", a.hosts.hostfile, "Lines NAME slots=N: the job is started on all of these hosts");
  run->add_option("--enable_each_rank_log", a.each_rank_log, "The same as --log-dir");
  run->add_flag("--bind_cores_to_rank,--bind-cores-to-rank", a.bind_cores, "Each rank runs on CPUs of its own");
  run->add_option("--bind_core_list,--bind-core-list", a.bind_core_list, "Which CPUs these are: 0-3,8");
  run->add_flag("--no_deepspeed,--no-deepspeed", a.no_deepspeed,
                "`import deepspeed` finds an installed DeepSpeed, not zeroshard");
  run->add_flag("--add_local_rank,--add-local-rank", a.add_local_rank,
                "SCRIPT's first argument is --local_rank=N, as from DeepSpeed's launcher");
  run->add_flag("--no_local_rank,--no-local-rank", a.no_local_rank, "Not so; the default of `zeroshard run`");
  add_supervisor_options(*run, a.launch);
  add_int(*run, "--nnodes,--num_nodes", {.min = 1}, a.hosts.num_nodes, "Hosts of the job (default: 1)");
  add_int(*run, "--node_rank,--node-rank", {.min = 0}, a.hosts.node_rank, "This host's number (default: 0)");
  run->add_option("--job", a.launch.job,
                  "The job's name, the same on all its hosts: launchers of others are sent away");
  run->add_option("--master_addr,--master-addr", a.hosts.master_addr, "Host of rank 0 (default: 127.0.0.1)");
  add_host_options(*run, a.hosts);
  add_int(*run, "--restarts", {.min = 0}, a.launch.restarts,
          "What --hostfile passes to each host: the restarts of the job so far");
  run->add_flag("--from-stdin", a.from_stdin,
                "What --hostfile starts on each host: all else comes from standard input");
  run->callback([arguments, run] { throw Exit{start(*run, *arguments)}; });
}

std::vector<char*> without_separator(const CLI::App& app, std::vector<char*> arguments) {
  if (arguments.size() < 2 || std::string_view(arguments[1]) != "run") return arguments;
  const CLI::App* run = app.get_subcommand("run");
  for (size_t i = 2; i < arguments.size(); ++i) {
    const std::string argument = arguments[i];
    if (argument == "--") {
      arguments.erase(arguments.begin() + static_cast<std::ptrdiff_t>(i));
      return arguments;
    }
    if (!argument.starts_with('-')) return arguments;  // this is the script, and the words after it are its own
    const CLI::Option* option = run->get_option_no_throw(argument);
    if (option != nullptr && option->get_expected_min() > 0) ++i;  // skips the option's value
  }
  return arguments;
}

}  // namespace zeroshard::cli
