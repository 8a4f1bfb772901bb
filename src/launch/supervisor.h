#pragma once
#include <signal.h>

#include <optional>
#include <string>
#include <vector>

#include "base/unique_fd.h"
#include "launch/hang_watch.h"
#include "launch/host_link.h"
#include "launch/rank_group.h"
#include "launch/rank_output.h"
#include "launch/report.h"
#include "launch/restart.h"
#include "zeroshard/launch.h"

namespace zeroshard {

struct SupervisorInputs {
  int lifeline;  // read end of a pipe whose write end closes when the launcher is gone
  int port;      // port of rank 0's store
  Attempt attempt;
  HostLink* link;      // the link to the launchers of other hosts; null if there are none
  sigset_t handled;    // the signals on which the supervisor acts; they are blocked
  sigset_t rank_mask;  // the signal mask with which ranks start
};

// The result of a supervisor. It is sent between processes as bytes, so it has no pointers.
struct Conclusion {
  int code = 0;                 // exit code of the job, if the job ends
  std::optional<Attempt> next;  // the next start; unset if the job ends
};

// Supervises the ranks of this host. The constructor starts them. run() watches them, and returns when none of their
// processes is left, or when some cannot be killed. On node 0, run() also waits for the ranks of the other hosts,
// unless there is a Cause to end the job. Runs in a process of its own; see Note [Two processes] in launch.cpp.
class Supervisor {
 public:
  Supervisor(const LaunchOptions& options, const SupervisorInputs& inputs);
  Conclusion run();

 private:
  enum class Phase {
    kRunning,
    kDumping,    // hanging ranks print their stacks
    kStopping,   // ranks were told to end, and will be killed at the deadline
    kLingering,  // all ranks have ended, but a process that they started has not
    kEnding,     // all ranks have ended, and processes that they left were told to end
    kKilling,    // everything is being killed
  };
  // Says why the job ends. kNone: no reason so far, so every rank runs or ended with 0.
  struct Cause {
    enum class Kind { kNone, kFailure, kSignal, kStall, kHang, kAbsence, kLauncherGone, kOtherHost } kind = Kind::kNone;
    int rank = -1;   // for kFailure, kStall, kHang and kAbsence
    int signal = 0;  // for kSignal
    // For kSignal: the host whose launcher got the signal, or "" for this host. For all other kinds except kNone: the
    // reason in words.
    std::string text;
    int code = 1;  // the job's exit code; not used for kNone and kSignal
  };

  void wait();
  void handle_signals();
  void handle_signal(int signal, bool forwarded);
  void stop_for(int signal, bool forwarded, const std::string& other_host = {});
  void suspend();
  void resume();
  void handle_exits();
  void check_lifeline();
  void check_stalls();
  void check_hang();
  void check_absence();
  void check_hosts();
  void heed(const HostNews& news);
  void begin_end(Cause cause, double age_s = 0);
  void await_hosts();
  void end_ranks();
  void check_deadline();
  void enter(Phase phase, double seconds);
  bool leave_ranks_behind();
  bool has_to_stay() const;
  bool finished() const;
  const RankProcess& rank(int number) const;
  std::vector<LaterFailure> later_failures() const;
  const RankProcess* failed_after_signal() const;
  int report_failure(const RankProcess& first, const std::vector<LaterFailure>& later);
  int report_cause();
  std::optional<Attempt> next_attempt();
  Conclusion conclude();

  const LaunchOptions& options_;
  const SupervisorInputs inputs_;
  UniqueFd signals_;
  HangWatch hang_watch_;
  RankGroup group_;
  RankOutput output_;
  Phase phase_ = Phase::kRunning;
  double deadline_s_ = 0;
  double signalled_at_s_ = 0;  // when ranks were told to end, or were found to hang
  bool suspended_ = false;     // whether SIGTSTP has stopped the ranks and the launcher
  int stop_signal_ = 0;        // the last signal that asked the job to end, even if something else ended it; 0: none
  Cause cause_;
};

}  // namespace zeroshard
