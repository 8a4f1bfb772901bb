// Note [Two processes]: `launch` forks a supervisor, which starts the ranks. Launcher and supervisor clean up for each
// other. Both are "subreapers", so a process below them that loses its parent becomes a child of the nearest subreaper
// above. If the launcher is killed, even by SIGKILL, the supervisor sees the end of the lifeline pipe and kills
// everything below itself. If the supervisor is killed, the kernel kills the ranks (PR_SET_PDEATHSIG). The processes
// that the ranks had started then become the launcher's children, and the launcher kills them. The supervisor has a
// process group of its own, so that Ctrl-C reaches it only once, from the launcher, which forwards every signal that it
// gets.
#include "zeroshard/launch.h"

#include <limits.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <optional>
#include <type_traits>

#include "base/check.h"
#include "base/host_name.h"
#include "base/log.h"
#include "base/shown_text.h"
#include "base/umask.h"
#include "launch/cpu_places.h"
#include "launch/descendants.h"
#include "launch/environment.h"
#include "launch/host_link.h"
#include "launch/limits.h"
#include "launch/port.h"
#include "launch/restart.h"
#include "launch/subreaper.h"
#include "launch/supervisor.h"
#include "launch/taken_signals.h"

namespace zeroshard {
namespace {

constexpr int kDefaultPort = 29500;  // the port of torchrun, at which launchers of several hosts meet by default

bool is_job_name(const std::string& name) {
  constexpr size_t kLongest = 64;
  const auto fits = [](unsigned char c) { return c < 128 && (std::isalnum(c) != 0 || c == '_' || c == '.'); };
  return name.size() <= kLongest && std::all_of(name.begin(), name.end(), fits);
}

void make_log_dir(const std::string& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  ZS_CHECK(!error && ::access(folder.c_str(), W_OK) == 0, "cannot write logs to '", folder,
           "': ", error ? error.message() : "it is read-only", advice_on_umask());
}

// Prints why some rank could not be started, decides on a restart, and returns the conclusion of this start.
Conclusion without_start(const LaunchOptions& options, const Attempt& attempt, const RankStartError& error) {
  std::cerr << "zeroshard: " << error.what() << std::endl;
  const JobFailure failure{.kind = JobFailure::Kind::kNoStart, .rank = error.rank(), .code = 1};
  const RestartDecision decision = decide_restart(options, attempt, failure);
  if (!decision.text.empty()) log(LogLevel::kInfo, decision.text);
  return {1, decision.next};
}

void tell_hosts(const SupervisorInputs& inputs, const std::string& text) {
  if (inputs.link != nullptr) inputs.link->tell({HostNews::Kind::kFailed, 1, text, 0});
}

// Supervises the ranks, writes the Conclusion to `result` and exits. A supervisor that was killed has written no
// Conclusion.
[[noreturn]] void run_supervisor(const LaunchOptions& options, const SupervisorInputs& inputs, int result) {
  ::setpgid(0, 0);
  ::signal(SIGTTOU, SIG_IGN);  // the supervisor is in the background, and must be able to write to the terminal
  for (const int signal : {SIGPIPE, SIGXFSZ}) ::signal(signal, SIG_IGN);  // a failed write is an error instead
  ::prctl(PR_SET_NAME, "zs-supervisor");  // so that `killall -9 zeroshard` does not kill both processes
  Conclusion conclusion{.code = 1, .next = {}};
  try {
    Supervisor supervisor(options, inputs);
    conclusion = supervisor.run();
  } catch (const RankStartError& error) {
    conclusion = without_start(options, inputs.attempt, error);
    tell_hosts(inputs, concat("rank ", error.rank(), " (on host ", host_name(), ") could not start: ", error.what()));
  } catch (const std::exception& error) {
    std::cerr << "zeroshard: " << error.what() << std::endl;
    tell_hosts(inputs, concat("the launcher on host ", host_name(), " has failed: ", error.what()));
  }
  static_assert(std::is_trivially_copyable_v<Conclusion> && sizeof(Conclusion) <= PIPE_BUF);
  [[maybe_unused]] const ssize_t written = ::write(result, &conclusion, sizeof conclusion);
  ::_exit(conclusion.code);
}

// Returns the supervisor's exit code, or nothing while the supervisor runs. If signal n killed the supervisor, kills
// all ranks and returns 128 + n.
std::optional<int> exit_of(pid_t supervisor, const Subreaper& subreaper) {
  siginfo_t info{};
  if (::waitid(P_PID, static_cast<id_t>(supervisor), &info, WEXITED | WNOHANG) != 0) throw_errno("waitid");
  if (info.si_pid == 0) return {};
  if (info.si_code == CLD_EXITED) return info.si_status;
  log(LogLevel::kError, concat("the supervisor (pid ", supervisor, ") was killed by ", signal_name(info.si_status),
                               ": killing all ranks"));
  subreaper.kill_all();
  return 128 + info.si_status;
}

// Forwards signals to the supervisor until the supervisor ends, and returns its exit code. If a signal asks the job to
// end, sets `stop_signal` to this signal. After SIGTSTP, stops this process, too.
int forward_signals(pid_t supervisor, const TakenSignals& signals, const Subreaper& subreaper, int& stop_signal) {
  for (;;) {
    siginfo_t info{};
    const int signal = ::sigwaitinfo(&signals.taken(), &info);
    if (signal < 0) continue;
    if (signal == SIGCHLD) {
      if (const auto code = exit_of(supervisor, subreaper)) return *code;
      continue;
    }
    if (stops(signal)) stop_signal = signal;
    ::kill(supervisor, signal);
    if (signal == SIGTSTP) ::raise(SIGSTOP);
  }
}

struct Ports {
  // On a single host, reserves the fixed port for rank 0's store, or a free port if the fixed port is 0. The launchers
  // of several hosts meet at the fixed port, or at kDefaultPort if the fixed port is 0, and node 0's launcher reserves
  // a free port for rank 0's store.
  explicit Ports(const LaunchOptions& options) : fixed(options.master_port) {
    if (options.node_rank == 0) reservation.emplace(options.nnodes == 1 ? fixed : 0);
    if (options.nnodes == 1) return;
    const int own = reservation ? reservation->port() : 0;
    link.emplace(options, meet_hosts(options, fixed == 0 ? kDefaultPort : fixed, own));
  }
  int port() const { return reservation ? reservation->port() : link->store_port(); }
  // Takes another port if the port of a single host is not fixed, because connections of the last start might linger on
  // the old port.
  void renew() {
    if (reservation && fixed == 0 && !link) reservation = PortReservation(0);
  }

  int fixed;
  std::optional<PortReservation> reservation;
  std::optional<HostLink> link;
};

// Starts the ranks once, in a supervisor of their own, and waits until the supervisor has ended. If a signal asks the
// job to end, sets `stop_signal` to this signal.
Conclusion run_attempt(const LaunchOptions& options, const Attempt& attempt, Ports& ports, const TakenSignals& signals,
                       int& stop_signal) {
  const Subreaper subreaper;
  Pipe lifeline = make_pipe(), result = make_pipe();
  std::fflush(nullptr);
  const pid_t supervisor = ::fork();
  if (supervisor < 0) throw_errno("cannot start the supervisor");
  if (supervisor == 0) {
    lifeline.write_end.reset();
    HostLink* const link = ports.link ? &*ports.link : nullptr;
    run_supervisor(options, {lifeline.read_end.get(), ports.port(), attempt, link, signals.taken(), signals.old_mask()},
                   result.write_end.get());
  }
  ::setpgid(supervisor, supervisor);
  lifeline.read_end.reset();
  result.write_end.reset();
  const int code = forward_signals(supervisor, signals, subreaper, stop_signal);
  Conclusion conclusion;
  // A supervisor that was killed has written no Conclusion, so the job is not restarted.
  if (::read(result.read_end.get(), &conclusion, sizeof conclusion) != sizeof conclusion) conclusion = {};
  conclusion.code = code;
  return conclusion;
}

}  // namespace

void check_launch_options(const LaunchOptions& options) {
  ZS_CHECK(!options.argv.empty(), "there is no program to run");
  ZS_CHECK(options.local_rank_at >= 0 && size_t(options.local_rank_at) <= options.argv.size(), "local_rank_at is ",
           options.local_rank_at, ", expected 0 to ", options.argv.size(), ", a place in argv");
  ZS_CHECK(options.nproc >= 1 && options.nproc <= kMaxRanksPerHost, "nproc is ", options.nproc, ", expected 1 to ",
           kMaxRanksPerHost);
  ZS_CHECK(options.cores.empty() || options.cores.size() >= size_t(options.nproc), "there are ", options.cores.size(),
           " cores to bind and ", options.nproc, " ranks, expected one core for each at least");
  const std::vector<int> usable = usable_cpus();
  for (const int core : options.cores) {
    ZS_CHECK(std::find(usable.begin(), usable.end(), core) != usable.end(), "core ", core,
             " cannot be bound: this process may use ", usable.size(), " CPUs, from ",
             usable.empty() ? 0 : usable.front(), " to ", usable.empty() ? 0 : usable.back());
  }
  ZS_CHECK(options.nnodes >= 1, "nnodes is ", options.nnodes, ", expected at least 1");
  ZS_CHECK(options.node_rank >= 0 && options.node_rank < options.nnodes, "node_rank is ", options.node_rank,
           ", expected 0 to nnodes - 1 = ", options.nnodes - 1);
  ZS_CHECK(is_job_name(options.job), "--job is ", shown_text(options.job),
           ", expected at most 64 letters, digits, '_' and '.'");
  ZS_CHECK(options.master_port >= 0 && options.master_port < 65536, "master_port is ", options.master_port,
           ", expected 1 to 65535, or 0 for a free one");
  ZS_CHECK(options.grace_period_s >= 0, "grace period is ", options.grace_period_s, ", expected seconds >= 0");
  ZS_CHECK(options.hang_timeout_s >= 0, "hang timeout is ", options.hang_timeout_s, ", expected seconds >= 0");
  ZS_CHECK(options.max_restarts >= 0, "max_restarts is ", options.max_restarts, ", expected at least 0");
  ZS_CHECK(options.max_restarts == 0 || options.nnodes == 1 || options.restarts, "--max-restarts is ",
           options.max_restarts, " but this command starts one of the job's ", options.nnodes,
           " hosts: start all hosts by one command with --hostfile, which restarts them, or leave --max-restarts and ",
           "--min-ranks out");
  ZS_CHECK(options.min_ranks >= 0 && options.min_ranks <= options.nproc * options.nnodes, "--min-ranks is ",
           options.min_ranks, " but the job has ", options.nproc * options.nnodes, " ranks (--nproc)");
  ZS_CHECK(options.min_ranks == 0 || options.max_restarts > 0, "--min-ranks is ", options.min_ranks,
           ": give --max-restarts too, without which nothing is started again");
  ZS_CHECK(options.stall_timeout_s >= 0, "stall timeout is ", options.stall_timeout_s, ", expected seconds >= 0");
}

int launch(const LaunchOptions& options) {
  check_launch_options(options);
  if (!options.log_dir.empty()) make_log_dir(options.log_dir);
  Ports ports(options);
  if (const int threads = omp_num_threads(options); threads > 0) {
    log(LogLevel::kInfo, concat("OMP_NUM_THREADS=", threads, " for each of ", options.nproc, " ranks (", count_cpus(),
                                " CPUs); set it to choose another"));
  }
  if (const std::string numa = cpu_places(options).numa; !numa.empty())
    log(LogLevel::kInfo, numa + "; --numa-binding none leaves all CPUs to all ranks");
  const TakenSignals signals;
  LaunchOptions current = options;
  Attempt attempt{.restarts = options.restarts.value_or(0), .nproc = options.nproc, .last_failure = {}};
  for (;;) {
    current.nproc = attempt.nproc;
    int stop_signal = 0;
    const Conclusion conclusion = run_attempt(current, attempt, ports, signals, stop_signal);
    if (!conclusion.next) return conclusion.code;
    if (stop_signal == 0) stop_signal = await_stop(signals, 0);
    if (stop_signal != 0) {
      log(LogLevel::kInfo, concat(signal_name(stop_signal), ": not started again"));
      return 128 + stop_signal;
    }
    attempt = *conclusion.next;
    ports.renew();
  }
}

}  // namespace zeroshard
