// `zeroshard run`: starts the ranks of a training script.
#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>
#include <optional>

#include "commands.h"
#include "numbers.h"
#include "zeroshard/error.h"
#include "zeroshard/launch.h"

namespace zeroshard::cli {
namespace {

struct RunArguments {
  std::optional<std::string> nproc, num_gpus, master_port, nnodes, node_rank, grace_period, stall_timeout, hang_timeout,
      max_restarts, min_ranks;
  std::optional<std::string> master_addr;
  std::string log_dir;
  bool module = false, no_python = false;
};

int ranks_of(const RunArguments& arguments) {
  if (arguments.nproc && arguments.num_gpus) throw ValueError("give --nproc or --num_gpus, not both");
  if (arguments.nproc) return parse_int("--nproc", arguments.nproc, 1, 1);
  const int gpus = count_gpus();
  const int ranks = parse_int("--num_gpus", arguments.num_gpus, 1, std::max(1, gpus));
  if (arguments.num_gpus && ranks > gpus) {
    throw ValueError("--num_gpus is " + std::to_string(ranks) + " but this host has " + std::to_string(gpus) +
                     " visible; --nproc starts that many ranks on any device");
  }
  return ranks;
}

LaunchOptions to_options(const RunArguments& arguments, std::vector<std::string> rest) {
  if (rest.empty()) throw ValueError("which script? zeroshard run [OPTIONS] SCRIPT [ARGS...]");
  if (rest.front().starts_with('-')) {
    throw ValueError("unknown option '" + rest.front() + "' (for a script of that name: ./" + rest.front() + ")");
  }
  LaunchOptions options;
  options.nproc = ranks_of(arguments);
  options.nnodes = parse_int("--nnodes", arguments.nnodes, 1, 1);
  options.node_rank = parse_int("--node_rank", arguments.node_rank, 0, 0);
  options.master_port = parse_int("--master_port", arguments.master_port, 0, 0);
  options.grace_period_s = parse_seconds("--grace-period", arguments.grace_period, options.grace_period_s);
  options.stall_timeout_s = parse_seconds("--stall-timeout", arguments.stall_timeout, options.stall_timeout_s);
  options.hang_timeout_s = parse_seconds("--hang-timeout", arguments.hang_timeout, options.hang_timeout_s);
  options.max_restarts = parse_int("--max-restarts", arguments.max_restarts, 0, 0);
  options.min_ranks = parse_int("--min-ranks", arguments.min_ranks, 1, 0);
  options.log_dir = arguments.log_dir;
  if (options.nnodes > 1 && !arguments.master_addr) {
    throw ValueError("--nnodes is " + std::to_string(options.nnodes) + ": give --master_addr, the host of rank 0");
  }
  if (arguments.master_addr) options.master_addr = *arguments.master_addr;

  Program program{.script = rest.front(), .arguments = {rest.begin() + 1, rest.end()}};
  program.module = arguments.module;
  program.no_python = arguments.no_python;
  options.argv = resolve(program);
  options.signal_whole_group = !program.module && (program.no_python || !program.script.ends_with(".py"));
  return options;
}

}  // namespace

void add_run_command(CLI::App& app) {
  CLI::App* run = app.add_subcommand("run", "Starts one process per rank, watches them and ends them together");
  run->footer("zeroshard run [OPTIONS] SCRIPT [ARGS...]: all that follows SCRIPT belongs to it. See docs/launcher.md.");
  run->prefix_command();
  auto arguments = std::make_shared<RunArguments>();  // lives as long as the callback
  RunArguments& a = *arguments;
  run->add_option("--nproc,--nproc_per_node,--nproc-per-node", a.nproc, "Ranks on this host (default: one per GPU)");
  run->add_option("--num_gpus,--num-gpus", a.num_gpus, "The same, refused when there are fewer GPUs");
  run->add_option("--master_port,--master-port", a.master_port, "Port of rank 0's store (default: a free one)");
  run->add_flag("-m,--module", a.module, "SCRIPT is a Python module");
  run->add_flag("--no_python,--no-python", a.no_python, "SCRIPT is a program, looked up in PATH");
  run->add_option("--grace-period,--grace_period", a.grace_period,
                  "Seconds that ranks have to end after a signal before they are killed (default: 30)");
  run->add_option("--stall-timeout,--stall_timeout", a.stall_timeout,
                  "Seconds after which a stopped rank ends the job (default: 10; 0: never)");
  run->add_option("--hang-timeout,--hang_timeout", a.hang_timeout,
                  "Seconds without progress of the ranks after which the job ends, with a report (default: 0, never)");
  run->add_option("--max-restarts,--max_restarts", a.max_restarts,
                  "How often a job that fails or hangs starts again, all ranks anew (default: 0)");
  run->add_option("--min-ranks,--min_ranks", a.min_ranks,
                  "With how few ranks it may start again, when one keeps failing (default: as many as before)");
  run->add_option("--log-dir,--log_dir", a.log_dir, "Folder for rank-N.log, all that each rank writes");
  run->add_option("--nnodes", a.nnodes, "Hosts of the job (default: 1)");
  run->add_option("--node_rank,--node-rank", a.node_rank, "This host's number (default: 0)");
  run->add_option("--master_addr,--master-addr", a.master_addr, "Host of rank 0 (default: 127.0.0.1)");
  run->callback([arguments, run] { throw Exit{launch(to_options(*arguments, run->remaining()))}; });
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
    if (!argument.starts_with('-')) return arguments;  // the script: what follows is its own
    const CLI::Option* option = run->get_option_no_throw(argument);
    if (option != nullptr && option->get_expected_min() > 0) ++i;  // its value
  }
  return arguments;
}

}  // namespace zeroshard::cli
