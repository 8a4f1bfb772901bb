#pragma once
#include <optional>
#include <string>

#include "zeroshard/launch.h"

namespace zeroshard {

// How the ranks of one start failed. Sent between processes as bytes: no pointers.
struct JobFailure {
  // kNoStart: its process could not be started. kAbsence: it ended with 0 while others waited for it to arrive.
  enum class Kind { kExit, kHang, kNoStart, kAbsence } kind = Kind::kExit;
  int rank = 0;              // the first rank that failed
  int code = 0, signal = 0;  // its exit code; the signal that killed it, or 0
  bool any_step = false;     // some rank had reported a step
  double after_s = 0;
};

// One start of the job.
struct Attempt {
  int restarts = 0;  // before this one
  int nproc = 1;
  // The failure of the previous start, if it had as many ranks.
  std::optional<JobFailure> last_failure;
};

struct RestartDecision {
  std::optional<Attempt> next;  // empty: the job ends
  std::string text;             // one line for the user; empty if no restarts were requested
};

// Whether to restart, according to --max-restarts and --min-ranks, and with how many ranks.
RestartDecision decide_restart(const LaunchOptions& options, const Attempt& attempt, const JobFailure& failure);

}  // namespace zeroshard
