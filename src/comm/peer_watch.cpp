#include "comm/peer_watch.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <utility>

#include "base/boot_id.h"
#include "base/format.h"

namespace zeroshard {
namespace {

constexpr int64_t kLookEveryMs = 100;

struct Stat {
  char state = '?';
  uint64_t start_time = 0;
};

enum class Look : uint8_t { kSeen, kGone, kUnknown };

// Reads fields 3 (state) and 22 (start time) of /proc/<pid>/stat. Looks for field 3 from the end of the line, because
// the name in field 2 can contain spaces and parentheses.
Look read_stat(int32_t pid, Stat& stat) {
  char path[64];
  std::snprintf(path, sizeof path, "/proc/%d/stat", pid);
  const int fd = ::open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return errno == ENOENT || errno == ESRCH ? Look::kGone : Look::kUnknown;
  char text[1024];
  const ssize_t size = ::read(fd, text, sizeof text - 1);
  const int read_error = errno;
  ::close(fd);
  if (size <= 0) return size < 0 && read_error == ESRCH ? Look::kGone : Look::kUnknown;
  const std::string line(text, static_cast<size_t>(size));
  size_t at = line.rfind(')');
  if (at == std::string::npos || at + 2 >= line.size()) return Look::kUnknown;
  stat.state = line[at + 2];
  for (int field = 2; field < 22 && at != std::string::npos; ++field) at = line.find(' ', at + 1);
  if (at == std::string::npos) return Look::kUnknown;
  stat.start_time = std::strtoull(line.c_str() + at, nullptr, 10);
  return Look::kSeen;
}

}  // namespace

ProcessId this_process() {
  Stat stat;
  const int32_t pid = ::getpid();
  if (read_stat(pid, stat) != Look::kSeen) return {pid, 0};
  return {pid, stat.start_time};
}

std::string this_host() {
  const std::string boot = boot_id();
  char pid_namespace[64];
  const ssize_t size = ::readlink("/proc/self/ns/pid", pid_namespace, sizeof pid_namespace);
  if (boot.empty() || size <= 0) return {};
  return boot + "/" + std::string(pid_namespace, static_cast<size_t>(size));
}

ProcessState state_of(const ProcessId& process) {
  Stat stat;
  switch (read_stat(process.pid, stat)) {
    case Look::kGone:
      return ProcessState::kDead;
    case Look::kUnknown:
      // This process cannot look, for example because it has no descriptors left. That is no fault of the peer, so the
      // peer counts as running.
      return ProcessState::kRunning;
    case Look::kSeen:
      break;
  }
  if (process.start_time != 0 && stat.start_time != process.start_time) return ProcessState::kDead;
  if (stat.state == 'Z' || stat.state == 'X' || stat.state == 'x') return ProcessState::kDead;
  return stat.state == 'T' || stat.state == 't' ? ProcessState::kStopped : ProcessState::kRunning;
}

PeerWatch::PeerWatch(std::vector<ProcessId> processes, int64_t stall_timeout_ms, std::shared_ptr<WaitListener> listener,
                     RankNumbers numbers)
    : stall_timeout_ms_(stall_timeout_ms), own_pid_(::getpid()), listener_(std::move(listener)), numbers_(numbers) {
  for (const ProcessId& process : processes) peers_.push_back({process, {}, 0});
}

bool PeerWatch::watches(const Peer& peer) const {
  return peer.process.pid != 0 && peer.process.pid != own_pid_;
}

std::string PeerWatch::text(int rank, ProcessState state) const {
  if (state == ProcessState::kDead) return name(rank) + " died";
  const int64_t stopped_ms = peers_.at(static_cast<size_t>(rank)).stopped_ms;
  return concat(name(rank), " has been stopped (by a signal or a debugger) for ", stopped_ms, " ms");
}

std::optional<std::string> PeerWatch::check(int rank) {
  Peer& peer = peers_.at(static_cast<size_t>(rank));
  if (!watches(peer)) return std::nullopt;
  const auto now = Clock::now();
  const int64_t since_ms = std::chrono::duration_cast<std::chrono::milliseconds>(now - peer.last_look).count();
  if (since_ms < kLookEveryMs) return std::nullopt;
  peer.last_look = now;
  const ProcessState state = state_of(peer.process);
  // Each check adds at most 2 * kLookEveryMs. So if this process and its peer were both stopped for a long time
  // (Ctrl-Z), that time hardly counts against the peer.
  peer.stopped_ms = state == ProcessState::kStopped ? peer.stopped_ms + std::min(since_ms, 2 * kLookEveryMs) : 0;
  if (state == ProcessState::kRunning) return std::nullopt;
  if (state == ProcessState::kStopped && peer.stopped_ms < stall_timeout_ms_) return std::nullopt;
  return text(rank, state);
}

std::string PeerWatch::check_all() {
  if (listener_ != nullptr) {
    if (std::string elsewhere = listener_->failure_elsewhere(); !elsewhere.empty()) return elsewhere;
  }
  bool trouble = false;
  for (int rank = 0; rank < world_size(); ++rank) trouble = check(rank).has_value() || trouble;
  if (!trouble) return {};
  std::string all;
  for (int rank = 0; rank < world_size(); ++rank) {
    const Peer& peer = peers_[static_cast<size_t>(rank)];
    const ProcessState state = watches(peer) ? state_of(peer.process) : ProcessState::kRunning;
    if (state != ProcessState::kRunning) all += (all.empty() ? "" : ", ") + text(rank, state);
  }
  return all;
}

std::string PeerWatch::name(int rank) const {
  const ProcessId& process = peers_.at(static_cast<size_t>(rank)).process;
  if (process.pid == 0) return concat("rank ", numbers_.of(rank));
  return concat("rank ", numbers_.of(rank), " (pid ", process.pid, ")");
}

}  // namespace zeroshard
