#include "launch/process_state.h"

#include <sys/syscall.h>

#include <cstdint>
#include <cstdlib>
#include <string_view>
#include <utility>

#include "launch/process_file.h"

namespace zeroshard {
namespace {

// System calls in which ranks can wait.
constexpr std::pair<long, std::string_view> kSystemCalls[] = {
    {SYS_read, "read"},
    {SYS_write, "write"},
    {SYS_pread64, "pread64"},
    {SYS_pwrite64, "pwrite64"},
    {SYS_fsync, "fsync"},
    {SYS_fdatasync, "fdatasync"},
    {SYS_ioctl, "ioctl"},
    {SYS_futex, "futex"},
    {SYS_ppoll, "ppoll"},
    {SYS_pselect6, "pselect6"},
    {SYS_epoll_pwait, "epoll_pwait"},
    {SYS_connect, "connect"},
    {SYS_accept, "accept"},
    {SYS_recvfrom, "recvfrom"},
    {SYS_recvmsg, "recvmsg"},
    {SYS_sendto, "sendto"},
    {SYS_sendmsg, "sendmsg"},
    {SYS_nanosleep, "nanosleep"},
    {SYS_clock_nanosleep, "clock_nanosleep"},
    {SYS_wait4, "wait4"},
    {SYS_waitid, "waitid"},
#ifdef SYS_poll
    {SYS_poll, "poll"},
#endif
#ifdef SYS_select
    {SYS_select, "select"},
#endif
#ifdef SYS_epoll_wait
    {SYS_epoll_wait, "epoll_wait"},
#endif
};

std::string_view word(char state) {
  switch (state) {
    case 'R':
      return "running";
    case 'S':
      return "sleeping";
    case 'D':
      return "waiting inside the kernel";
    case 'T':
      return "stopped";
    case 't':
      return "traced";
    case 'Z':
      return "ended";
    default:
      return "?";
  }
}

std::string system_call(const std::string& text) {
  char* end = nullptr;
  const long number = std::strtol(text.c_str(), &end, 10);
  if (end == text.c_str() || number < 0) return {};  // the file has "running" or -1, or cannot be read
  for (const auto& [known, name] : kSystemCalls) {
    if (known == number) return std::string(name);
  }
  return std::to_string(number);
}

}  // namespace

std::string kernel_state(pid_t pid) {
  const std::string stat = read_process_file(pid, "stat");
  const size_t end = stat.rfind(") ");  // the end of the name, which can contain anything
  if (end == stat.npos || end + 2 >= stat.size()) return "gone";
  const char state = stat[end + 2];
  std::string result{state};
  result.append(" (").append(word(state)).append(")");
  const std::string wchan = read_process_file(pid, "wchan");
  if (!wchan.empty() && wchan != "0") result += " in " + wchan;
  const std::string call = system_call(read_process_file(pid, "syscall"));
  if (!call.empty()) result += ", system call " + call;
  return result;
}

bool handles_signal(pid_t pid, int signal) {
  const std::string status = read_process_file(pid, "status");
  constexpr std::string_view kCaught = "\nSigCgt:";
  const size_t begin = status.find(kCaught);
  if (begin == status.npos || signal < 1 || signal > 64) return false;
  const uint64_t caught = std::strtoull(status.c_str() + begin + kCaught.size(), nullptr, 16);
  return ((caught >> (signal - 1)) & 1) != 0;
}

}  // namespace zeroshard
