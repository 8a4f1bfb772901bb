#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "launch/last_words.h"
#include "launch/rank_process.h"

namespace zeroshard {

// "rank 1 (pid 1234 on host box) was killed by SIGSEGV after 12.3 s"
std::string describe_exit(const RankProcess& rank);
// Whether a rank, or a job, that ends with this code has received SIGTERM or SIGINT and answered by ending cleanly.
bool was_asked_to_stop(int code);
// How a report begins: "job failed: ", or "job stopped: " if it was asked to.
std::string verdict(int code);
// "rank 1 (pid 1234 on host box) has been stopped by SIGSTOP for 10 s"
std::string describe_stop(const RankProcess& rank, double seconds);

// The same failure as seen by a rank that ended after the first one.
struct LaterFailure {
  RankProcess rank;
  std::string message;  // the first line of its error on stderr
};

// Several lines: what happened first (with the last step that the rank reported, if any), the error that it wrote, what
// followed from it, and what the first rank wrote before. Nothing is repeated.
std::string failure_report(const RankProcess& first, std::optional<int64_t> last_step,
                           const std::vector<LaterFailure>& later, const LastWords& words);

}  // namespace zeroshard
