#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "launch/last_words.h"
#include "launch/rank_process.h"

namespace zeroshard {

// Returns for example "rank 1 (pid 1234 on host box) was killed by SIGSEGV after 12.3 s".
std::string describe_exit(const RankProcess& rank);
// Returns whether the exit code of a rank or a job says that the rank or the job got SIGTERM or SIGINT, and ended
// cleanly because of this signal.
bool was_asked_to_stop(int code);
// Returns the beginning of a report: "job failed: ", or "job stopped: " if was_asked_to_stop(code) is true.
std::string verdict(int code);
// Returns for example "rank 1 (pid 1234 on host box) has been stopped by SIGSTOP for 10 s".
std::string describe_stop(const RankProcess& rank, double seconds);

// A rank that failed soon after the first one, most likely because of the same failure.
struct LaterFailure {
  RankProcess rank;
  std::string message;  // the first line of its error on stderr; "" if there is none
};

// Returns a report. It begins with the first failure and, if there is one, the last step that the failed rank reported.
// If the rank was asked to stop, the report ends there. Otherwise, if SIGKILL ended the rank, the report says who may
// have sent it. Then come the lines that the rank wrote to stderr before its error, the error itself, and the later
// failures. A message that two ranks have in common is shown once.
std::string failure_report(const RankProcess& first, std::optional<int64_t> last_step,
                           const std::vector<LaterFailure>& later, const LastWords& words);

}  // namespace zeroshard
