#include "launch/rank_group.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "launch/cpu_places.h"
#include "launch/descendants.h"

namespace zeroshard {
namespace {

std::vector<std::string> argv_of(const LaunchOptions& options, int local_rank) {
  std::vector<std::string> argv = options.argv;
  if (options.local_rank_at > 0) {
    argv.insert(argv.begin() + options.local_rank_at, "--local_rank=" + std::to_string(local_rank));
  }
  return argv;
}

std::optional<cpu_set_t> cpus_of(const LaunchOptions& options, int local_rank) {
  const CpuPlaces places = cpu_places(options);
  if (places.cpus.empty()) return {};
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int cpu : places.cpus[size_t(local_rank)]) CPU_SET(size_t(cpu), &set);
  return set;
}

}  // namespace

ExitOrder::ExitOrder() : epoll_(::epoll_create1(EPOLL_CLOEXEC)) {
  if (!epoll_) throw_errno("epoll_create1");
}

void ExitOrder::add(pid_t pid) {
  UniqueFd pidfd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));  // exec() closes it
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.fd = pid;
  if (!pidfd || ::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, pidfd.get(), &event) != 0) return;
  pidfds_.emplace_back(pid, std::move(pidfd));
}

std::vector<pid_t> ExitOrder::ended() {
  std::vector<pid_t> result;
  std::array<epoll_event, 64> events;
  for (;;) {
    const int count = ::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), 0);
    if (count <= 0) return result;
    for (int i = 0; i < count; ++i) {
      const pid_t pid = events[static_cast<size_t>(i)].data.fd;
      result.push_back(pid);
      std::erase_if(pidfds_, [pid](const auto& entry) { return entry.first == pid; });
    }
  }
}

RankGroup::RankGroup(const LaunchOptions& options, const Start& how, const sigset_t& signal_mask)
    : start_(std::chrono::steady_clock::now()), signal_whole_group_(options.signal_whole_group) {
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  int local_rank = 0;
  try {
    for (; local_rank < options.nproc; ++local_rank) start(options, local_rank, how, signal_mask);
  } catch (const std::exception& error) {
    // Frees descriptors so that /proc can be read, because the start might have failed for lack of descriptors.
    streams_.clear();
    for (const RankProcess& rank : ranks_) ::kill(-rank.pid, SIGKILL);
    signal_descendants(SIGKILL);
    while (::waitpid(-1, nullptr, 0) > 0) {
    }
    throw RankStartError(options.node_rank * options.nproc + local_rank, error.what());
  }
}

void RankGroup::start(const LaunchOptions& options, int local_rank, const Start& how, const sigset_t& signal_mask) {
  const int rank = options.node_rank * options.nproc + local_rank;
  // Only the first rank of this host gets the standard input, because a file or pipe can have only one reader. No rank
  // gets a terminal, because a process group in the background cannot read a terminal.
  const bool has_stdin = local_rank == 0 && ::isatty(STDIN_FILENO) != 1 && ::fcntl(STDIN_FILENO, F_GETFD) >= 0;
  const UniqueFd null(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  std::array<int, 3> stdio{has_stdin ? STDIN_FILENO : null.get(), STDOUT_FILENO, STDERR_FILENO};
  std::array<Pipe, 3> pipes;
  for (const int stream : {STDOUT_FILENO, STDERR_FILENO}) {
    const OutputMode mode = output_mode(options, local_rank, stream);
    Pipe& pipe = pipes[static_cast<size_t>(stream)];
    if (mode != OutputMode::kDirect) {
      pipe = make_pipe();
      // A larger pipe causes fewer waits. If the system refuses the size, the default size works, too.
      ::fcntl(pipe.read_end.get(), F_SETPIPE_SZ, 1 << 20);
      stdio[static_cast<size_t>(stream)] = pipe.write_end.get();
    }
    streams_.push_back({rank, stream, mode, std::move(pipe.read_end)});
  }
  const pid_t pid = spawn({argv_of(options, local_rank), environment_of(options, local_rank, how), stdio, signal_mask,
                           how.heartbeat_fd, cpus_of(options, local_rank)});
  ranks_.push_back({.rank = rank, .pid = pid, .exit = {}, .stopped_since_s = {}});
  exit_order_.add(pid);
}

double RankGroup::elapsed_s() const {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
}

RankProcess* RankGroup::find(pid_t pid) {
  const auto found = std::find_if(ranks_.begin(), ranks_.end(), [pid](const auto& rank) { return rank.pid == pid; });
  return found == ranks_.end() ? nullptr : &*found;
}

bool RankGroup::reap_rank(RankProcess& rank) {
  siginfo_t info{};
  if (rank.exit || ::waitid(P_PID, static_cast<id_t>(rank.pid), &info, WEXITED | WNOHANG) != 0 || info.si_pid == 0) {
    return false;
  }
  const bool by_signal = info.si_code != CLD_EXITED;
  rank.exit = ProcessExit{by_signal ? 0 : info.si_status, by_signal ? info.si_status : 0, elapsed_s()};
  rank.stopped_since_s.reset();
  return true;
}

void RankGroup::update_stopped(RankProcess& rank) {
  for (;;) {
    siginfo_t info{};
    const int options = WSTOPPED | WCONTINUED | WNOHANG;
    if (rank.exit || ::waitid(P_PID, static_cast<id_t>(rank.pid), &info, options) != 0 || info.si_pid == 0) return;
    if (info.si_code == CLD_CONTINUED) {
      rank.stopped_since_s.reset();
    } else {
      rank.stop_signal = info.si_status;
      rank.stopped_since_s = elapsed_s();
    }
  }
}

void RankGroup::reap_others() {
  for (;;) {
    siginfo_t info{};
    if (::waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == 0) return;
    if (find(info.si_pid) != nullptr) return;  // a rank that has just ended; the next reap() sees it
    ::waitpid(info.si_pid, nullptr, WNOHANG);
  }
}

std::vector<RankProcess> RankGroup::reap() {
  std::vector<RankProcess> ended;
  for (const pid_t pid : exit_order_.ended()) {
    RankProcess* rank = find(pid);
    if (rank != nullptr && reap_rank(*rank)) ended.push_back(*rank);
  }
  for (RankProcess& rank : ranks_) {
    if (reap_rank(rank)) ended.push_back(rank);
    update_stopped(rank);
  }
  reap_others();
  return ended;
}

bool RankGroup::all_exited() const {
  return std::all_of(ranks_.begin(), ranks_.end(), [](const auto& rank) { return rank.exit.has_value(); });
}

bool RankGroup::empty() const {
  siginfo_t info{};
  return all_exited() && ::waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) != 0 && errno == ECHILD;
}

bool RankGroup::has_group_members() const {
  return std::any_of(ranks_.begin(), ranks_.end(), [](const auto& rank) { return ::kill(-rank.pid, 0) == 0; });
}

void RankGroup::signal(int signal) const {
  for (const RankProcess& rank : ranks_) {
    if (!rank.exit) ::kill(signal_whole_group_ ? -rank.pid : rank.pid, signal);
  }
}

void RankGroup::end(int signal) const {
  for (const RankProcess& rank : ranks_) {
    if (rank.exit) continue;
    ::kill(-rank.pid, signal);
    ::kill(-rank.pid, SIGCONT);
  }
}

void RankGroup::signal_descendants(int signal) const {
  for (const pid_t pid : descendants(::getpid())) ::kill(pid, signal);
}

}  // namespace zeroshard
