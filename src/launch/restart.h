#pragma once
#include <optional>
#include <string>

#include "zeroshard/launch.h"

namespace zeroshard {

// The failure that ended one start of the job. It is sent between processes as bytes, so it has no pointers.
struct JobFailure {
  // kHang: the rank made no progress, or was stopped for too long. kNoStart: the rank's process could not be started.
  // kAbsence: the rank ended with 0 while others waited for the rank to arrive.
  enum class Kind { kExit, kHang, kNoStart, kAbsence } kind = Kind::kExit;
  int rank = 0;              // the first rank that failed
  int code = 0, signal = 0;  // that rank's exit code, and the signal that killed it (0: none)
  bool any_step = false;     // whether some rank had reported a step
  double after_s = 0;        // seconds from the start to the failure
};

// One start of the job.
struct Attempt {
  int restarts = 0;  // how many restarts there were before this start
  int nproc = 1;
  // The failure of the previous start. Set only if that start had as many ranks as this one.
  std::optional<JobFailure> last_failure;
};

struct RestartDecision {
  std::optional<Attempt> next;  // the next start; unset if the job ends
  std::string text;             // one line for the user; "" if the user asked for no restarts
};

// Returns whether a start that failed after `seconds` failed at once, which means within a minute. A model can take
// minutes to load, but an error in the script shows within seconds.
bool fails_at_once(double seconds);

// Decides by --max-restarts and --min-ranks whether to start a job of one host again, and with how many ranks. Never
// starts a job of several hosts again, for which restart_hosts.h decides.
RestartDecision decide_restart(const LaunchOptions& options, const Attempt& attempt, const JobFailure& failure);

}  // namespace zeroshard
