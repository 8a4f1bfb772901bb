// Note [Started from another host]: `zeroshard run --hostfile` starts this process on each host, over ssh or, on its
// own host, directly. This process (the relay) starts `zeroshard run`, the host's launcher, with the arguments of its
// order. When the relay's connection ends, the relay kills the launcher by SIGKILL, waits until the ranks have ended,
// and ends. The launcher's supervisor kills the ranks, as it always does when its launcher is killed. So a lost
// connection, a killed ssh and a killed launcher are handled as one case.
#include "launch/host_relay.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <optional>

#include "base/check.h"
#include "base/log.h"
#include "base/shown_text.h"
#include "base/unique_fd.h"
#include "launch/environment.h"
#include "launch/host_order.h"
#include "launch/host_relay_lines.h"
#include "launch/rank_process.h"
#include "launch/subreaper.h"
#include "launch/taken_signals.h"

namespace zeroshard {
namespace {

using RelayClock = std::chrono::steady_clock;
constexpr int kLookMs = 500;
constexpr double kOrphansS = 10;  // the time that a supervisor has to kill the ranks of its killed launcher

double s_after(RelayClock::time_point begin) {
  return std::chrono::duration<double>(RelayClock::now() - begin).count();
}

void say(std::string_view line) {
  const std::string text = concat(line, "\n");
  [[maybe_unused]] const ssize_t written = ::write(STDOUT_FILENO, text.data(), text.size());
}

// The connection to the launcher that has sent the order.
class Connection {
 public:
  Connection(int fd, double patience_s) : fd_(fd), patience_s_(patience_s) { set_nonblocking(fd_); }

  int fd() const { return fd_; }
  // Returns the signals that have come since the last call.
  std::vector<int> receive() {
    std::vector<int> signals;
    std::array<char, 4096> buffer;
    while (is_open_) {
      const ssize_t got = ::read(fd_, buffer.data(), buffer.size());
      if (got < 0 && errno == EINTR) continue;
      if (got < 0 && errno == EAGAIN) break;
      if (got <= 0) is_open_ = false;
      if (got <= 0) break;
      heard_ = RelayClock::now();
      begun_.append(buffer.data(), static_cast<size_t>(got));
      for (size_t end = begun_.find('\n'); end != begun_.npos; end = begun_.find('\n')) {
        if (const int signal = signal_of_control_line(std::string_view(begun_).substr(0, end))) note(signal, signals);
        begun_.erase(0, end + 1);
      }
      if (begun_.size() > buffer.size()) is_open_ = false;  // no launcher writes such a long line
    }
    return signals;
  }
  // Returns why the job has to end on this host, or "" if it goes on.
  std::string loss() const {
    if (!is_open_) return "the connection to the host that started the job is gone";
    if (patience_s_ == 0 || is_suspended_ || s_after(heard_) <= patience_s_) return {};
    return concat("the host that started the job has not been heard for ", patience_s_, " s");
  }

 private:
  void note(int signal, std::vector<int>& signals) {
    if (signal == SIGTSTP || signal == SIGCONT) is_suspended_ = signal == SIGTSTP;
    signals.push_back(signal);
  }

  int fd_;
  double patience_s_;
  bool is_open_ = true, is_suspended_ = false;  // a suspended launcher sends no beats, so its silence does not count
  std::string begun_;                           // a line whose end has not arrived yet
  RelayClock::time_point heard_ = RelayClock::now();
};

// Removes the variables by which srun, mpirun and mpiexec tell a process which of their ranks it is. One of them can
// have started this process as a rank, but the ranks of the job are other processes.
void forget_rank() {
  constexpr std::array kPrefixes{"OMPI_COMM_WORLD_", "PMI_",          "PMIX_",        "MPI_LOCAL",
                                 "SLURM_PROCID",     "SLURM_LOCALID", "SLURM_NTASKS", "SLURM_STEP_"};
  for (const std::string& variable : own_environment()) {
    const std::string name = variable.substr(0, variable.find('='));
    const auto begins = [&](const char* prefix) { return name.starts_with(prefix); };
    if (std::any_of(kPrefixes.begin(), kPrefixes.end(), begins)) ::unsetenv(name.c_str());
  }
}

void enter(const HostOrder& order) {
  forget_rank();
  ZS_CHECK(::chdir(order.folder.c_str()) == 0, "the job's folder ", shown_text(order.folder, 400),
           " cannot be entered on this host: ", std::strerror(errno));
  for (const std::string& variable : order.environment) {
    const size_t equals = variable.find('=');
    ::setenv(variable.substr(0, equals).c_str(), variable.c_str() + equals + 1, 1);
  }
}

pid_t start(const HostOrder& order, const sigset_t& signal_mask) {
  std::vector<std::string> argv{std::filesystem::read_symlink("/proc/self/exe"), "run"};
  argv.insert(argv.end(), order.arguments.begin(), order.arguments.end());
  const UniqueFd null(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  return spawn({argv, own_environment(), {null.get(), STDOUT_FILENO, STDERR_FILENO}, signal_mask, -1, {}});
}

// Returns the exit code of the launcher, if it has ended. Returns 128 + n for a launcher that signal n killed, but 1
// after SIGKILL, because the launchers of the other hosts then end with 1, too.
std::optional<int> exit_code(pid_t launcher) {
  int status = 0;
  if (::waitpid(launcher, &status, WNOHANG) != launcher) return {};
  if (!WIFSIGNALED(status)) return WEXITSTATUS(status);
  return WTERMSIG(status) == SIGKILL ? 1 : 128 + WTERMSIG(status);
}

// Waits until this process has no children. If the launcher was killed, its supervisor is a child of this process until
// the supervisor has killed the ranks. Kills what is left after kOrphansS.
void await_orphans(const Subreaper& subreaper) {
  for (const auto begin = RelayClock::now(); s_after(begin) < kOrphansS; ::poll(nullptr, 0, 20)) {
    while (::waitpid(-1, nullptr, WNOHANG) > 0) {
    }
    if (children(::getpid()).empty()) return;
  }
  subreaper.kill_all();
}

int relay(pid_t launcher, Connection connection, const TakenSignals& signals) {
  const UniqueFd received(::signalfd(-1, &signals.taken(), SFD_CLOEXEC | SFD_NONBLOCK));
  for (bool is_lost = false;;) {
    std::array<pollfd, 2> fds{{{received.get(), POLLIN, 0}, {is_lost ? -1 : connection.fd(), POLLIN, 0}}};
    ::poll(fds.data(), fds.size(), kLookMs);
    signalfd_siginfo info{};
    while (::read(received.get(), &info, sizeof info) == sizeof info)
      if (info.ssi_signo != SIGCHLD) ::kill(launcher, static_cast<int>(info.ssi_signo));
    if (const auto code = exit_code(launcher)) return *code;
    for (const int signal : connection.receive()) ::kill(launcher, signal);
    if (is_lost || connection.loss().empty()) continue;
    ::kill(launcher, SIGKILL);
    for (const int fd : {STDOUT_FILENO, STDERR_FILENO}) set_nonblocking(fd);  // the reader of the output might be gone
    log(LogLevel::kError, connection.loss() + ": killing all ranks of this host");
    is_lost = true;
  }
}

}  // namespace

int follow_order(int fd) {
  const HostOrder order = read_order(fd);
  enter(order);
  ::signal(SIGPIPE, SIG_IGN);  // receive() notices the end of the connection instead
  const TakenSignals signals;
  const Subreaper subreaper;
  say(begin_mark(order.nonce));
  const int code = relay(start(order, signals.old_mask()), Connection(fd, order.patience_s), signals);
  await_orphans(subreaper);
  say(concat(end_mark(order.nonce), code));
  return code;
}

}  // namespace zeroshard
