// Note [Two processes]: `launch` forks a supervisor, which starts the ranks. Each is the other's insurance. Both are
// "subreapers": a process below them that loses its parent becomes the child of the nearest one. If the launcher is
// killed, even by SIGKILL, the supervisor sees the end of the lifeline pipe and kills everything below itself. If the
// supervisor is killed, the kernel kills the ranks (PR_SET_PDEATHSIG), what they had started becomes the launcher's,
// and the launcher kills it. The supervisor has a process group of its own, so that Ctrl-C reaches it once: from the
// launcher, which forwards every signal it gets.
#include "zeroshard/launch.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <optional>

#include "base/check.h"
#include "base/log.h"
#include "launch/descendants.h"
#include "launch/environment.h"
#include "launch/port.h"
#include "launch/supervisor.h"

namespace zeroshard {
namespace {

constexpr int kMaxRanksPerHost = 4096;
constexpr int kDefaultPort = 29500;  // torchrun's, for several hosts

void check(const LaunchOptions& options) {
  ZS_CHECK(!options.argv.empty(), "there is no program to run");
  ZS_CHECK(options.nproc >= 1 && options.nproc <= kMaxRanksPerHost, "nproc is ", options.nproc, ", expected 1 to ",
           kMaxRanksPerHost);
  ZS_CHECK(options.nnodes >= 1, "nnodes is ", options.nnodes, ", expected at least 1");
  ZS_CHECK(options.node_rank >= 0 && options.node_rank < options.nnodes, "node_rank is ", options.node_rank,
           ", expected 0 to nnodes - 1 = ", options.nnodes - 1);
  ZS_CHECK(options.master_port >= 0 && options.master_port < 65536, "master_port is ", options.master_port,
           ", expected 1 to 65535, or 0 for a free one");
  ZS_CHECK(options.grace_period_s >= 0, "grace period is ", options.grace_period_s, ", expected seconds >= 0");
  ZS_CHECK(options.stall_timeout_s >= 0, "stall timeout is ", options.stall_timeout_s, ", expected seconds >= 0");
}

void make_log_dir(const std::string& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  ZS_CHECK(!error && ::access(folder.c_str(), W_OK) == 0, "cannot write logs to '", folder,
           "': ", error ? error.message() : "it is read-only");
}

// Signals that the launcher takes instead of dying from them. Restores all on destruction.
class TakenSignals {
 public:
  TakenSignals() {
    ::sigemptyset(&taken_);
    for (const int signal : {SIGINT, SIGTERM, SIGQUIT, SIGUSR1, SIGUSR2, SIGTSTP, SIGCONT, SIGCHLD}) {
      ::sigaddset(&taken_, signal);
    }
    struct sigaction hangup {};
    ::sigaction(SIGHUP, nullptr, &hangup);
    if (hangup.sa_handler != SIG_IGN) ::sigaddset(&taken_, SIGHUP);  // nohup means it
    struct sigaction standard {};
    standard.sa_handler = SIG_DFL;  // ignored, children would vanish without an exit code
    ::sigaction(SIGCHLD, &standard, &child_action_);
    ::sigprocmask(SIG_BLOCK, &taken_, &old_mask_);
  }
  ~TakenSignals() {
    ::sigprocmask(SIG_SETMASK, &old_mask_, nullptr);
    ::sigaction(SIGCHLD, &child_action_, nullptr);
  }
  TakenSignals(const TakenSignals&) = delete;

  const sigset_t& taken() const { return taken_; }
  const sigset_t& old_mask() const { return old_mask_; }

 private:
  sigset_t taken_, old_mask_;
  struct sigaction child_action_ {};
};

// While it lives, orphans below this process become its children.
class Subreaper {
 public:
  Subreaper() : before_(children(::getpid())) {
    ::prctl(PR_GET_CHILD_SUBREAPER, &was_);
    ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  }
  ~Subreaper() { ::prctl(PR_SET_CHILD_SUBREAPER, was_); }
  Subreaper(const Subreaper&) = delete;

  // Kills all processes below this one, save those that were there before.
  void kill_all() const {
    for (;;) {
      const std::vector<pid_t> found = descendants(::getpid(), before_);
      if (found.empty()) return;
      for (const pid_t pid : found) {
        ::kill(pid, SIGKILL);
        ::waitpid(pid, nullptr, WNOHANG);
      }
      ::usleep(10'000);
    }
  }

 private:
  std::vector<pid_t> before_;
  int was_ = 0;
};

[[noreturn]] void run_supervisor(const LaunchOptions& options, const SupervisorInputs& inputs) {
  ::setpgid(0, 0);
  ::signal(SIGTTOU, SIG_IGN);  // in the background, and yet it writes
  ::signal(SIGPIPE, SIG_IGN);
  ::prctl(PR_SET_NAME, "zs-supervisor");  // `killall -9 zeroshard` must not take both
  int code = 1;
  try {
    Supervisor supervisor(options, inputs);
    code = supervisor.run();
  } catch (const std::exception& error) {
    std::cerr << "zeroshard: " << error.what() << std::endl;
  }
  ::_exit(code);
}

// What became of the supervisor, once it has ended.
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

int forward_signals(pid_t supervisor, const TakenSignals& signals, const Subreaper& subreaper) {
  for (;;) {
    siginfo_t info{};
    const int signal = ::sigwaitinfo(&signals.taken(), &info);
    if (signal < 0) continue;
    if (signal == SIGCHLD) {
      if (const auto code = exit_of(supervisor, subreaper)) return *code;
      continue;
    }
    ::kill(supervisor, signal);
    if (signal == SIGTSTP) ::raise(SIGSTOP);
  }
}

}  // namespace

int launch(const LaunchOptions& options) {
  check(options);
  if (!options.log_dir.empty()) make_log_dir(options.log_dir);
  std::optional<PortReservation> reservation;
  if (options.nnodes == 1) reservation.emplace(options.master_port);
  const int given_port = options.master_port == 0 ? kDefaultPort : options.master_port;
  const int port = reservation ? reservation->port() : given_port;
  if (const int threads = omp_num_threads(options); threads > 0) {
    log(LogLevel::kInfo, concat("OMP_NUM_THREADS=", threads, " for each of ", options.nproc, " ranks (", count_cpus(),
                                " CPUs); set it to choose another"));
  }
  const TakenSignals signals;
  const Subreaper subreaper;
  Pipe lifeline = make_pipe();
  std::fflush(nullptr);
  const pid_t supervisor = ::fork();
  if (supervisor < 0) throw_errno("cannot start the supervisor");
  if (supervisor == 0) {
    lifeline.write_end.reset();
    run_supervisor(options, {lifeline.read_end.get(), port, signals.taken(), signals.old_mask()});
  }
  ::setpgid(supervisor, supervisor);
  lifeline.read_end.reset();
  return forward_signals(supervisor, signals, subreaper);
}

}  // namespace zeroshard
