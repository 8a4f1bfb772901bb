#pragma once
#include <optional>
#include <vector>

#include "comm/comm.h"
#include "device/exact_sum.h"
#include "optim/sharded_optimizer.h"

namespace zeroshard {

// What one rank tells the others at a step, and what they know afterwards: whether it is so on any rank.
struct StepSignals {
  bool save_failed = false;  // a checkpoint in the background
  bool stop = false;         // the run is to end at this step
  bool wrote = false;        // the user wrote to parameters
};

// What all ranks know of a step before they apply it.
struct Consensus {
  bool finite = true;
  double squares = 0;                       // of all reduced gradients, still multiplied by the loss scale
  std::vector<std::vector<bool>> has_grad;  // [shard][parameter]: some rank had a gradient
  StepSignals signals;
};

// One small all-reduce a step (two when some parameter got no gradient somewhere). It is also the point at which
// every rank has finished its gathers, so that shards may be written. `squares`, `has_grad` and
// `signals` are this rank's.
Consensus agree_on_step(Comm& comm, at::Device device, const ExactSum& squares, std::vector<std::vector<bool>> has_grad,
                        const StepSignals& signals);

// Which flags are set on some rank. Collective.
std::vector<int64_t> agree_on_flags(Comm& comm, at::Device device, const std::vector<int64_t>& flags);

// The first parameter, in the order of units, with a non-finite reduced gradient on any rank: {shard, parameter}.
// Collective; for the message of a skipped step.
std::optional<std::pair<size_t, size_t>> find_non_finite(Comm& comm, at::Device device,
                                                         const std::vector<ParamSlice>& slices);

}  // namespace zeroshard
