#pragma once
#include <signal.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>

namespace zeroshard {

// Blocks the signals that the launcher handles, so that it can wait for them. The destructor restores the previous
// handling.
class TakenSignals {
 public:
  TakenSignals() {
    ::sigemptyset(&taken_);
    for (const int signal : {SIGINT, SIGTERM, SIGQUIT, SIGUSR1, SIGUSR2, SIGTSTP, SIGCONT, SIGCHLD}) {
      ::sigaddset(&taken_, signal);
    }
    struct sigaction hangup {};
    ::sigaction(SIGHUP, nullptr, &hangup);
    if (hangup.sa_handler != SIG_IGN) ::sigaddset(&taken_, SIGHUP);  // if SIGHUP is ignored, nohup has set that
    struct sigaction standard {};
    standard.sa_handler = SIG_DFL;  // if SIGCHLD were ignored, children would vanish without an exit code
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

// Returns whether `signal` asks a job to end.
inline bool stops(int signal) {
  return signal == SIGINT || signal == SIGTERM || signal == SIGQUIT || signal == SIGHUP;
}

// Returns a signal that asks the job to end. Takes one that is pending, or waits up to `seconds` for one. Returns 0 if
// none comes. Drops other signals that it finds.
inline int await_stop(const TakenSignals& signals, double seconds) {
  using Clock = std::chrono::steady_clock;
  const auto end = Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
  for (;;) {
    const int64_t left = std::max<int64_t>(0, std::chrono::nanoseconds(end - Clock::now()).count());
    const timespec time{.tv_sec = left / 1'000'000'000, .tv_nsec = left % 1'000'000'000};
    const int signal = ::sigtimedwait(&signals.taken(), nullptr, &time);
    if (signal < 0 && errno != EINTR) return 0;
    if (signal > 0 && stops(signal)) return signal;
  }
}

}  // namespace zeroshard
