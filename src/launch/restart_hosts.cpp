#include "launch/restart_hosts.h"

#include "base/format.h"
#include "launch/report.h"
#include "launch/restart.h"

namespace zeroshard {
namespace {

std::string describe(const HostsAttempt& attempt, const JobEnd& end) {
  if (end.lost.empty()) return concat("the job ended with exit code ", end.code);
  std::string names;
  for (const size_t host : end.lost) names += concat(names.empty() ? "" : ", ", attempt.hosts[host]);
  return concat(end.lost.size() == 1 ? "host " : "hosts ", names,
                end.could_not_start    ? " could not be started"
                : end.lost.size() == 1 ? " is gone"
                                       : " are gone");
}

// Returns the hosts that the next start should do without. These are the lost hosts, if there are any. Otherwise
// returns the last host, wherever the failed rank was, in two cases: after a second failure in a row on the same hosts,
// and after a start on fewer hosts that failed at once. (On one host, the last rank is left out in the same way.)
// Returns none in all other cases.
std::vector<size_t> unwanted(const HostsAttempt& attempt, const JobEnd& end) {
  if (!end.lost.empty()) return end.lost;
  // A start with fewer hosts than before may have a number of ranks among which the batch or the rows cannot be divided
  // evenly.
  const bool is_new = attempt.restarts > 0 && !attempt.last;
  const bool fewer = attempt.last || (is_new && fails_at_once(end.after_s));
  return fewer ? std::vector{attempt.hosts.size() - 1} : std::vector<size_t>{};
}

}  // namespace

HostsRestart decide_restart(const LaunchOptions& options, const HostsAttempt& attempt, const JobEnd& end) {
  if (options.max_restarts == 0 || !end.has_failed) return {};
  const std::string what = describe(attempt, end);
  const auto stays = [](const std::string& why) { return HostsRestart{false, {}, "not started again: " + why}; };
  if (attempt.hosts.size() == 1) return end.lost.empty() ? HostsRestart{} : stays(what + ", and there is no other one");
  if (end.lost.empty() && end.code == 2 && fails_at_once(end.after_s))
    return stays(what + " at once, as it does for wrong options");
  if (end.lost.empty() && was_asked_to_stop(end.code))
    return stays(what + ", as ranks do that a signal has asked to stop");
  if (attempt.restarts >= options.max_restarts)
    return stays(concat(what, " and --max-restarts ", options.max_restarts, " is used up"));

  HostsRestart restart{.begins = true, .dropped = unwanted(attempt, end), .text = {}};
  size_t left = attempt.hosts.size() - restart.dropped.size();
  if (options.min_ranks == 0 || left == 0 || int(left) * attempt.ranks < options.min_ranks) {
    restart.dropped.clear();
    left = attempt.hosts.size();
  }
  const bool same = restart.dropped.empty();
  if (same && end.could_not_start)
    return stays(concat(what, options.min_ranks == 0 ? "; --min-ranks allows to go on without it" : ""));
  const bool is_loop = attempt.last && attempt.last->code == end.code && fails_at_once(attempt.last->after_s) &&
                       fails_at_once(end.after_s);
  if (same && is_loop) return stays(what + " within a minute of its start, twice in a row: it would do so again");
  const int ranks = int(left) * attempt.ranks;
  restart.text = concat(what, ": restart ", attempt.restarts + 1, " of ", options.max_restarts, " begins, on ", left,
                        left == 1 ? " host with " : " hosts with ", ranks, ranks == 1 ? " rank" : " ranks");
  return restart;
}

}  // namespace zeroshard
