#include "launch/restart.h"

#include "base/format.h"
#include "launch/rank_process.h"
#include "launch/report.h"

namespace zeroshard {
namespace {

bool early(const JobFailure& failure) {
  return !failure.any_step && fails_at_once(failure.after_s);
}

// Returns whether the job might not fit its new number of ranks, because the batch or, with sequence_parallel_size, the
// rows cannot be divided evenly among that many ranks. This is possible if the first start with the new number of ranks
// fails at once, with an exit code.
bool unfit(const Attempt& attempt, const JobFailure& failure) {
  const bool is_new = attempt.restarts > 0 && !attempt.last_failure;
  return is_new && early(failure) && failure.kind == JobFailure::Kind::kExit && failure.signal == 0;
}

bool crash_loop(const JobFailure& last, const JobFailure& failure) {
  return early(last) && early(failure) && last.kind == failure.kind && last.code == failure.code &&
         last.signal == failure.signal;
}

// Returns whether the failed rank ended because it was asked to. A rank that a signal killed has no exit code, so the
// function returns false for it.
bool ended_by_request(const JobFailure& failure) {
  return failure.kind == JobFailure::Kind::kExit && failure.signal == 0 && was_asked_to_stop(failure.code);
}

std::string describe(const JobFailure& failure) {
  const std::string rank = concat("rank ", failure.rank, " ");
  if (failure.kind == JobFailure::Kind::kNoStart) return rank + "could not be started";
  if (failure.kind == JobFailure::Kind::kHang) return rank + "made no progress";
  if (failure.kind == JobFailure::Kind::kAbsence) return rank + "ended before the others had met it";
  return failure.signal != 0 ? concat(rank, "was killed by ", signal_name(failure.signal))
                             : concat(rank, "ended with exit code ", failure.code);
}

}  // namespace

bool fails_at_once(double seconds) {
  return seconds < 60;
}

RestartDecision decide_restart(const LaunchOptions& options, const Attempt& attempt, const JobFailure& failure) {
  if (options.max_restarts == 0 || options.nnodes > 1) return {};
  const std::string what = describe(failure);
  if (ended_by_request(failure))
    return {{}, concat("not started again: ", what, ", as ranks do that a signal has asked to stop")};
  if (attempt.restarts >= options.max_restarts) {
    return {{}, concat("not started again: ", what, " and --max-restarts ", options.max_restarts, " is used up")};
  }
  const bool twice = attempt.last_failure && attempt.last_failure->rank == failure.rank;
  const bool no_start = failure.kind == JobFailure::Kind::kNoStart;
  const bool is_unfit = unfit(attempt, failure);
  // If not even the first rank can be started, fewer ranks do not help.
  const bool may_drop = twice || is_unfit || (no_start && failure.rank > 0);
  const bool fewer = may_drop && options.min_ranks > 0 && attempt.nproc > options.min_ranks;
  if (no_start && !fewer) return {{}, concat("not started again: ", what)};
  if (twice && !fewer && crash_loop(*attempt.last_failure, failure)) {
    return {{}, concat("not started again: ", what, " before any step, twice in a row: it would do so again")};
  }
  Attempt next{
      .restarts = attempt.restarts + 1, .nproc = fewer ? attempt.nproc - 1 : attempt.nproc, .last_failure = {}};
  if (!fewer) next.last_failure = failure;
  const std::string again = fewer && is_unfit
                                ? concat(" at once with ", attempt.nproc, " ranks, so there is one rank fewer")
                            : fewer && twice ? " twice in a row, so there is one rank fewer"
                            : fewer          ? ", so there is one rank fewer"
                                             : "";
  return {next, concat(what, again, ": restart ", next.restarts, " of ", options.max_restarts, " begins, with ",
                       next.nproc, next.nproc == 1 ? " rank" : " ranks")};
}

}  // namespace zeroshard
