#include "hosts.h"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>
#include <string_view>

#include "base/check.h"
#include "base/host_name.h"
#include "base/interface.h"
#include "base/log.h"
#include "base/shown_text.h"
#include "launch/environment.h"
#include "launch/job_hosts.h"
#include "launch/program.h"
#include "launch/rank_process.h"
#include "launch/restart_hosts.h"
#include "launch/taken_signals.h"
#include "numbers.h"
#include "zeroshard/launch.h"
#include "zeroshard/version.h"

namespace zeroshard::cli {
namespace {

// The options of `run` that are not passed on to the hosts as the user gave them. If a host needs such an option, it
// gets a value of its own.
constexpr std::array kOfTheJob{"nproc",       "num_gpus",      "nnodes",   "node_rank",  "master_addr",
                               "master_port", "job",           "hostfile", "include",    "exclude",
                               "launcher",    "launcher_args", "ssh_port", "from-stdin", "restarts"};

// Prefixes of the environment variables that each host gets in addition to those of .deepspeed_env: the variables that
// DeepSpeed passes on, and those that zeroshard, torch and Python read.
constexpr std::array kHandedOver{"MLFLOW", "PYTHON",      "MV2",        "UCX",   "NCCL", "LD_LIBRARY",
                                 "PATH",   "VIRTUAL_ENV", "ZEROSHARD_", "GLOO_", "OMP_", "TORCH_"};

std::string hostfile_line(const HostArguments& arguments, const JobHost& host) {
  return concat("hostfile '", arguments.hostfile, "', line ", host.line);
}

// Returns whether `host` is this machine, so that the job starts there without ssh. Returns false for a name USER@HOST
// even if HOST is this machine, because ssh has to log in as USER.
bool is_here(const JobHost& host) {
  return host.name == host.host() && is_this_host(host.host());
}

void check_filters(const HostArguments& arguments) {
  const bool filtered = !arguments.include.empty() || !arguments.exclude.empty();
  ZS_CHECK(!filtered || !(arguments.nproc || arguments.num_gpus || arguments.num_nodes),
           "--include and --exclude choose hosts and slots: give them without --nproc, --num_gpus and --num_nodes");
}

// Returns how many ranks to start on each host: --nproc or --num_gpus if given, else the number of slots to use. Throws
// ValueError if --num_gpus is more than the slots of some host. Without --nproc and --num_gpus, throws ValueError if
// hosts have different numbers of slots to use, because every host must run the same number of ranks.
int ranks_per_host(const std::vector<JobHost>& hosts, const HostArguments& arguments) {
  if (arguments.nproc) return *arguments.nproc;
  for (const JobHost& host : hosts) {
    if (arguments.num_gpus) {
      ZS_CHECK(*arguments.num_gpus <= host.all_slots, "--num_gpus is ", *arguments.num_gpus, " but ",
               hostfile_line(arguments, host), " gives ", host.name, " ", host.all_slots, " slots");
      continue;
    }
    ZS_CHECK(host.slots.size() == hosts[0].slots.size(), hostfile_line(arguments, host), " gives ", host.name, " ",
             host.slots.size(), " slots to use, and ", hosts[0].name, " has ", hosts[0].slots.size(),
             ": all hosts need the same number of ranks; --num_gpus N starts N on each, --include chooses slots");
  }
  return arguments.num_gpus.value_or(int(hosts[0].slots.size()));
}

std::string address_of(const JobHost& first, const HostArguments& arguments) {
  if (arguments.master_addr) return *arguments.master_addr;
  const std::string host = first.host();
  return host == "localhost" || host.starts_with("127.") || host == "::1" ? host_name() : host;
}

std::string random_name() {
  std::random_device random;
  std::ostringstream text;
  for (int i = 0; i < 4; ++i) text << std::hex << random();
  return text.str();
}

std::string own_path() {
  const std::string path = std::filesystem::read_symlink("/proc/self/exe");
  const auto is_safe = [](unsigned char c) {
    return c < 128 && (std::isalnum(c) != 0 || std::string_view("/._-+,").find(char(c)) != std::string_view::npos);
  };
  ZS_CHECK(path.starts_with('/') && std::all_of(path.begin(), path.end(), is_safe), "zeroshard is installed as '",
           shown_text(path, 400),
           "', and a shell on each host starts it by this path. Install zeroshard at a path that has only letters, ",
           "digits, '/', '.', '_', '-', '+' and ','");
  return path;
}

// Returns after how many seconds of silence the connection to a host counts as lost. This is stall_timeout_s, but at
// least 5, because fewer seconds would end healthy hosts, and at most an hour. A stall_timeout_s of 0, which means no
// limit for ranks, gives 60 here, because a lost host must not keep the job waiting forever.
double patience_s(const LaunchOptions& options) {
  return options.stall_timeout_s == 0 ? 60 : std::clamp(options.stall_timeout_s, 5.0, 3600.0);
}

// Returns the user's options that every host gets, each under its long name.
std::vector<std::string> common_options(const CLI::App& run) {
  std::vector<std::string> words;
  for (const CLI::Option* option : run.get_options()) {
    if (option->count() == 0 || option->get_lnames().empty()) continue;
    const std::string& name = option->get_lnames().front();
    if (std::find(kOfTheJob.begin(), kOfTheJob.end(), name) != kOfTheJob.end()) continue;
    const bool is_flag = option->get_items_expected_max() == 0;
    for (const std::string& value : option->results())
      words.push_back(is_flag ? "--" + name : "--" + name + "=" + value);
  }
  return words;
}

std::string slots_option(const JobHost& host, const HostArguments& arguments, int ranks) {
  if (arguments.nproc) return concat("--nproc=", ranks);
  if (arguments.num_gpus || host.uses_all()) return concat("--num_gpus=", ranks);
  std::string list;
  for (const int slot : host.slots) list += concat(list.empty() ? "" : ",", slot);
  return "--include=localhost:" + list;
}

// Appends the lines NAME=VALUE of DeepSpeed's file .deepspeed_env to `variables`. DS_ENV_FILE gives the file another
// name or path. Reads the file of the home directory first, then that of the current directory. If DS_ENV_FILE is an
// absolute path, reads only that file. A missing file is an error only if DS_ENV_FILE is set.
void add_environment_file(std::vector<std::string>& variables) {
  const char *name = std::getenv("DS_ENV_FILE"), *home = std::getenv("HOME");
  const bool is_named = name != nullptr && *name != 0;
  const std::filesystem::path file = is_named ? name : ".deepspeed_env";
  std::vector<std::filesystem::path> places{std::filesystem::path(home != nullptr ? home : "") / file, file};
  std::error_code error;
  bool has_any = false;
  if (file.is_absolute() || std::filesystem::equivalent(places[0], places[1], error)) places.pop_back();
  for (const std::filesystem::path& path : places) {
    if (!std::filesystem::is_regular_file(path, error)) continue;
    std::ifstream lines(path);
    ZS_CHECK(lines.is_open(), path.string(),
             " cannot be read, and its variables are meant for all hosts: make the file readable, or remove it");
    has_any = true;
    log(LogLevel::kInfo, concat("variables of ", path.string(), " go to all hosts"));
    int number = 0;
    for (std::string line; std::getline(lines, line);) {
      ++number;
      if (line.ends_with('\r')) line.pop_back();
      const size_t first = line.find_first_not_of(" \t"), equals = line.find('=');
      if (first == line.npos || line[first] == '#') continue;
      ZS_CHECK(equals != line.npos && equals > 0 && line.find('\0') == line.npos, path.string(), ", line ", number,
               " is not NAME=VALUE");  // the message does not show the line, because it can be a secret
      variables.push_back(line);
    }
  }
  ZS_CHECK(
      has_any || !is_named, "DS_ENV_FILE is ", shown_text(file.string(), 400),
      ", a file that is neither in the home nor in the current folder: unset it, or name a file of lines NAME=VALUE");
}

std::vector<std::string> variables_for_hosts() {
  std::vector<std::string> variables;
  for (const std::string& variable : own_environment()) {
    const auto begins = [&](const char* prefix) { return variable.starts_with(prefix); };
    if (std::any_of(kHandedOver.begin(), kHandedOver.end(), begins)) variables.push_back(variable);
  }
  add_environment_file(variables);
  return variables;
}

void check_apart(const std::vector<JobHost>& hosts, const HostArguments& arguments) {
  const JobHost* here = nullptr;
  for (const JobHost& host : hosts) {
    if (!is_here(host)) continue;
    ZS_CHECK(here == nullptr, hostfile_line(arguments, host), " names ", host.name, ", which is this machine, as ",
             here->name, " of line ", here->line, " is: name each host once");
    here = &host;
  }
}

// The current directory, the variables and the path of this command when it began. All starts of a job use these, even
// if the directory or files have changed between two starts.
struct Surroundings {
  std::string folder = std::filesystem::current_path();
  std::vector<std::string> variables = variables_for_hosts();
  std::vector<std::string> program{own_path(), "run", "--from-stdin"};
};

// Returns, for one start of the job, the command that starts zeroshard on each host, and the order that zeroshard then
// reads from standard input. `options.restarts` must be set.
std::vector<HostStart> starts_of(const CLI::App& run, const std::vector<JobHost>& hosts, const HostArguments& arguments,
                                 const LaunchOptions& options, const Surroundings& surroundings) {
  const std::string master = address_of(hosts[0], arguments), job = options.job.empty() ? random_name() : options.job;
  const std::vector<std::string> common = common_options(run);
  HostOrder order{.version = kVersion,
                  .nonce = random_name(),
                  .patience_s = patience_s(options),
                  .folder = surroundings.folder,
                  .arguments = {},
                  .environment = surroundings.variables};
  std::vector<HostStart> starts;
  for (size_t node = 0; node < hosts.size(); ++node) {
    order.arguments = common;
    order.arguments.push_back(slots_option(hosts[node], arguments, options.nproc));
    if (hosts.size() > 1)
      for (const std::string& word :
           {concat("--nnodes=", hosts.size()), concat("--node_rank=", node), "--master_addr=" + master, "--job=" + job})
        order.arguments.push_back(word);
    if (options.master_port != 0) order.arguments.push_back(concat("--master_port=", options.master_port));
    if (options.max_restarts > 0) order.arguments.push_back(concat("--restarts=", *options.restarts));
    order.arguments.insert(order.arguments.end(), options.argv.begin(), options.argv.end());
    const bool here = is_here(hosts[node]);
    starts.push_back(
        {hosts[node].name,
         here ? surroundings.program : command_on(hosts[node], arguments.reach, order.patience_s, surroundings.program),
         order, here});
  }
  return starts;
}

// If ranks of a lost host can still run, waits as long as that host needs to kill them. Without this wait, these ranks
// and those of the next start might use the same GPUs or write to the same files. Returns the signal that asked the job
// to end, or 0.
int await_end_of_lost(const JobEnd& end, const LaunchOptions& options, const TakenSignals& signals) {
  constexpr double kToEndS = 10;  // from the moment when a host gives up until its ranks have ended
  const double wait_s = end.can_still_run ? patience_s(options) + kToEndS : 0;
  if (wait_s > 0) log(LogLevel::kInfo, concat("waiting ", wait_s, " s until what is lost has ended its ranks"));
  const int signal = await_stop(signals, wait_s);
  if (signal != 0) log(LogLevel::kInfo, signal_name(signal) + ": not started again");
  return signal;
}

}  // namespace

void add_host_options(CLI::App& run, HostArguments& arguments) {
  Reach& reach = arguments.reach;
  run.add_option("--launcher", reach.launcher,
                 "How other hosts are reached: ssh (default; pdsh means the same), slurm, openmpi, mpich or impi");
  run.add_option("--launcher_args,--launcher-args", reach.launcher_args,
                 "More words for the command line of ssh, srun or mpirun");
  add_int(run, "--ssh_port,--ssh-port", {.min = 1, .max = 65535}, reach.ssh_port, "Port of sshd on the hosts");
}

std::vector<JobHost> other_hosts(const HostArguments& arguments) {
  if (arguments.hostfile.empty()) return {};
  const std::vector<JobHost> all = read_hostfile(arguments.hostfile);
  if (all.size() == 1) {
    ZS_CHECK(is_here(all[0]), hostfile_line(arguments, all[0]), " names '", all[0].name,
             "' alone, which is not this host: run it there");
    return {};
  }
  check_filters(arguments);
  std::vector<JobHost> hosts = chosen_hosts(all, arguments.include, arguments.exclude);
  ZS_CHECK(!arguments.node_rank, "--node_rank is ", arguments.node_rank.value_or(0), " but hostfile '",
           arguments.hostfile, "' has ", hosts.size(),
           " hosts, which are all started from here: leave --node_rank out, or leave --hostfile ",
           "out and start each host by itself");
  if (arguments.num_nodes) {
    ZS_CHECK(size_t(*arguments.num_nodes) <= hosts.size(), "--num_nodes is ", *arguments.num_nodes, " but hostfile '",
             arguments.hostfile, "' has ", hosts.size(), " hosts");
    hosts.resize(size_t(*arguments.num_nodes));
  }
  check_reach(arguments.reach);
  check_apart(hosts, arguments);
  return hosts;
}

int run_on_hosts(const CLI::App& run, std::vector<JobHost> hosts, HostArguments arguments,
                 const LaunchOptions& options) {
  LaunchOptions of_all = options;
  of_all.nproc = ranks_per_host(hosts, arguments);
  of_all.nnodes = static_cast<int>(hosts.size());
  of_all.argv = run.remaining();
  of_all.restarts = 0;
  check_launch_options(of_all);  // reports an error once, and not once on each host
  const Surroundings surroundings;
  const TakenSignals signals;
  std::optional<JobEnd> last;
  for (;;) {
    const JobEnd end =
        launch_on_hosts(starts_of(run, hosts, arguments, of_all, surroundings), options.grace_period_s, signals);
    const HostsAttempt attempt{*of_all.restarts, names_of(hosts), of_all.nproc, last};
    const HostsRestart restart = decide_restart(of_all, attempt, end);
    if (!restart.text.empty()) log(LogLevel::kInfo, restart.text);
    if (!restart.begins) return end.code;
    if (const int signal = await_end_of_lost(end, options, signals)) return 128 + signal;
    last = restart.dropped.empty() ? std::optional(end) : std::nullopt;
    // The user's --master_addr is the address of the first host, so it is of no use without that host.
    if (!restart.dropped.empty() && restart.dropped[0] == 0) arguments.master_addr.reset();
    for (auto dropped = restart.dropped.rbegin(); dropped != restart.dropped.rend(); ++dropped)
      hosts.erase(hosts.begin() + static_cast<std::ptrdiff_t>(*dropped));
    of_all.nnodes = static_cast<int>(hosts.size());
    ++*of_all.restarts;
  }
}

}  // namespace zeroshard::cli
