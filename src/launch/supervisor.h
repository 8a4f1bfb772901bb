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
  int lifeline;  // at its end when the launcher is gone
  int port;      // of rank 0's store
  Attempt attempt;
  HostLink* link;      // to the launchers of other hosts; null: there are none
  sigset_t handled;    // signals to act on; blocked
  sigset_t rank_mask;  // the mask ranks start with
};

// How the ranks ended. Sent between processes as bytes: no pointers.
struct Conclusion {
  int code = 0;                 // of the job, if it ends here
  std::optional<Attempt> next;  // the next start, if the job is restarted
};

// Starts the ranks and stays until none of their processes is left. Runs in a process of its own: see Note [Two
// processes] in launch.cpp.
class Supervisor {
 public:
  Supervisor(const LaunchOptions& options, const SupervisorInputs& inputs);
  Conclusion run();

 private:
  enum class Phase {
    kRunning,
    kDumping,    // hanging ranks print their stacks
    kStopping,   // ranks were told to end; the deadline is when they are killed
    kLingering,  // all ranks have ended, but a process that they started has not
    kEnding,     // that process was told to end
    kKilling,    // everything is being killed
  };
  // Why the job ends, unless every rank ended with 0.
  struct Cause {
    enum class Kind { kNone, kFailure, kSignal, kStall, kHang, kAbsence, kLauncherGone, kOtherHost } kind = Kind::kNone;
    int rank = -1;     // kFailure, kStall, kHang, kAbsence
    int signal = 0;    // kSignal
    std::string text;  // kStall, kHang, kAbsence, kOtherHost; kSignal: the host whose launcher got it, "" for this one
    int code = 1;      // of the job: kOtherHost
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
  double signalled_at_s_ = 0;
  bool suspended_ = false;  // by SIGTSTP, with the launcher
  int stop_signal_ = 0;     // from the user, whatever the cause
  Cause cause_;
};

}  // namespace zeroshard
