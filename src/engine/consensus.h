#pragma once
#include <span>
#include <string>
#include <vector>

#include "comm/comm.h"
#include "device/exact_sum.h"
#include "group/sharded_group.h"
#include "reduce/grad_bucket.h"

namespace zeroshard {

// Returns for each word its sum or maximum over ranks, as `op` says. Collective over comm.host().
std::vector<int64_t> all_reduce(Comm& comm, std::vector<int64_t> words, ReduceOp op, std::string_view tag);

// Throws CommError on every rank if ranks have called different collectives in one of `comms`. Must be called before
// the host waits for the device, because mismatched collectives may never end, or may have mixed the ranks' data.
// Compares only communicators that have a history(), which are those for a device. Does nothing if none of `comms` has
// one. Otherwise collective over host() of the first that has one.
void compare_histories(std::span<Comm* const> comms, std::string_view tag);

// The signals of a step. Each rank passes its own signals to agree_on_step(). In the result, each signal says whether
// any rank has set it.
struct StepSignals {
  bool save_failed = false;  // a background save has failed
  bool stop = false;         // the run shall end at this step
  bool wrote = false;        // the user wrote to parameters
  bool assigned = false;     // the user gave a parameter a gradient (param.grad = ...)
};

// Values that must be the same on all ranks.
struct StepState {
  bool has_gradients = false;  // a backward pass has ended since the last step, and was not discarded
  uint32_t hash = 0;           // hash of all other values that must be the same
};

// The results of a step's agreement. All ranks have them before they apply the step.
struct Consensus {
  bool finite = true;
  double squares = 0;  // sum of the squares of all reduced gradients, which still contain the loss scale
  std::vector<std::vector<bool>> has_grad;  // [trained group][parameter]: some rank had a gradient
  StepSignals signals;
  bool some_have_gradients = false, all_have_gradients = false;  // has_gradients is true on some rank, on all ranks
  bool same_hash = true;                                         // the low 24 bits of StepState::hash are the same
};

// Agrees on a step with one small all-reduce (two if some parameter got no gradient on some rank). Collective. Each
// rank must have waited for its gathers before the call. So when the call returns, the gathers of all ranks have ended,
// and shards may be written. `squares`, `has_grad`, `signals` and `state` are those of this rank.
Consensus agree_on_step(Comm& comm, const ExactSum& squares, std::vector<std::vector<bool>> has_grad,
                        const StepSignals& signals, const StepState& state);

// Returns whether `flag` is true on some rank. Collective over comm.host().
bool on_any_rank(Comm& comm, bool flag, std::string_view tag);

// Returns the name of the first parameter, in the order of `groups`, whose reduced gradient is not finite on some rank;
// "" if there is none. `groups` are all trained groups. Collective.
std::string find_non_finite(Comm& comm, std::span<ShardedGroup* const> groups, const std::vector<GradBucket>& buckets);

}  // namespace zeroshard
