#pragma once
#include <span>
#include <string>
#include <vector>

#include "comm/comm.h"
#include "device/exact_sum.h"
#include "group/sharded_group.h"
#include "reduce/grad_bucket.h"

namespace zeroshard {

// Of every word the sum or the maximum over ranks.
std::vector<int64_t> all_reduce(Comm& comm, std::vector<int64_t> words, ReduceOp op, std::string_view tag);

// On devices: throws CommError on every rank if ranks have called different collectives in one of `comms`, before
// anybody waits for a device that would not end them, or that has mixed their data. Collective over the first one's
// host.
void compare_histories(std::span<Comm* const> comms, std::string_view tag);

// What one rank tells the others at a step, and what they know afterwards: whether it is so on any rank.
struct StepSignals {
  bool save_failed = false;  // a checkpoint in the background
  bool stop = false;         // the run is to end at this step
  bool wrote = false;        // the user wrote to parameters
  bool assigned = false;     // the user gave a parameter a gradient (param.grad = ...)
};

// What must be the same on all ranks.
struct StepState {
  bool has_gradients = false;  // since the last step
  uint32_t hash = 0;           // of whatever else must be
};

// What all ranks know of a step before they apply it.
struct Consensus {
  bool finite = true;
  double squares = 0;                       // of all reduced gradients, still multiplied by the loss scale
  std::vector<std::vector<bool>> has_grad;  // [trained group][parameter]: some rank had a gradient
  StepSignals signals;
  bool some_have_gradients = false, all_have_gradients = false;  // ranks: StepState::has_gradients
  bool same_hash = true;                                         // StepState::hash
};

// One small all-reduce a step (two when some parameter got no gradient somewhere). It is also the point at which
// every rank has finished its gathers, so that shards may be written. `squares`, `has_grad`,
// `signals` and `state` are this rank's.
Consensus agree_on_step(Comm& comm, const ExactSum& squares, std::vector<std::vector<bool>> has_grad,
                        const StepSignals& signals, const StepState& state);

// Which flags are set on some rank. Collective.
std::vector<int64_t> agree_on_flags(Comm& comm, const std::vector<int64_t>& flags);

// The name of the first parameter, in the order of units, with a reduced gradient on any rank that is not finite; "" is
// none. Collective; for the message of a skipped step.
std::string find_non_finite(Comm& comm, std::span<ShardedGroup* const> groups, const std::vector<GradBucket>& buckets);

}  // namespace zeroshard
