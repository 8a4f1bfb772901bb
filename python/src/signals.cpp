#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <vector>

#include "bindings.h"

namespace zeroshard {
namespace {

constexpr int64_t kNanoseconds = 1'000'000'000;

int64_t monotonic_ns() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t(now.tv_sec) * kNanoseconds + now.tv_nsec;
}

struct Later {
  struct sigaction action;
  int64_t from_ns;
};

// later[n] says what signal n does from the moment `from_ns` on. The array is global, because act_later() is passed
// only the number of the signal. ignore_for() writes an entry before it installs act_later(), which reads the entry.
std::array<Later, NSIG> later{};

void act_later(int number) {
  const int error = errno;
  if (monotonic_ns() >= later[size_t(number)].from_ns) {
    ::sigaction(number, &later[size_t(number)].action, nullptr);
    ::raise(number);  // the signal arrives when this handler has returned
  }
  errno = error;
}

struct sigaction with_handler(void (*handler)(int)) {
  struct sigaction action {};
  action.sa_handler = handler;
  action.sa_flags = SA_RESTART;
  return action;
}

void ignore_for(int number, int64_t moment_ms, bool then_default) {
  Later& entry = later.at(size_t(number));
  ::sigaction(number, nullptr, &entry.action);
  if (then_default) entry.action = with_handler(SIG_DFL);
  entry.from_ns = monotonic_ns() + moment_ms * 1'000'000;
  const struct sigaction action = with_handler(&act_later);
  ::sigaction(number, &action, nullptr);
}

void end_for_parent(int, siginfo_t* info, void*) {
  if (info->si_pid == ::getppid()) ::_exit(0);
}

void ignore_all_but_parent(const std::vector<int>& numbers) {
  struct sigaction action {};
  action.sa_sigaction = &end_for_parent;
  action.sa_flags = SA_SIGINFO | SA_RESTART;
  for (const int number : numbers) ::sigaction(number, &action, nullptr);
}

}  // namespace

void bind_signals(py::module_& m) {
  m.def(
      "ignore_for", &ignore_for, py::arg("number"), py::arg("moment_ms"), py::arg("then_default"),
      "Ignores a signal for a moment. Afterwards the signal has the effect that it has now, or the system's default.");
  m.def("ignore_all_but_parent", &ignore_all_but_parent, py::arg("numbers"),
        "Makes these signals end the process with code 0 if its parent sends them, and do nothing otherwise.");
}

}  // namespace zeroshard
