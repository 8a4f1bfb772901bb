#pragma once
#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "zeroshard/activations.h"
#include "zeroshard/plan.h"

// How long a step takes, from shapes and the rates of a machine. Communication between ranks, operators that are no
// matrix products, and the first step are left out.
namespace zeroshard {

// Of one rank, per second, as the machine reaches them. Unset: not known.
struct MachineRates {
  double flops = 0;            // operations of matrix products in the dtype of compute
  std::optional<double> host;  // bytes of memory that the CPU reads and writes, together
  std::optional<double> link;  // bytes copied between device and host, each way
  std::optional<double> disk;  // bytes of swap files read and written at once, together
};

// Seconds of one step of a rank: all its micro-batches and the update.
struct PlannedStep {
  double forward = 0, backward = 0;  // of all micro-batches; layers that are computed again count in backward
  double link = 0;                   // copies between device and host: beside forward and backward
  double reads = 0;                  // parameters and inputs of layers in files: beside forward and backward, too
  double update = 0;                 // by the CPU
  double disk = 0;                   // swap files: beside the update
  double tokens = 0;                 // of a step, on this rank
  bool is_late = false;              // update and swap files: beside the passes of the next step

  double passes() const { return std::max({forward + backward, link, reads}); }
  double after() const { return std::max(update, disk); }
  double total() const { return is_late ? std::max(passes(), after()) : passes() + after(); }
  // The share of the step in which the device computes: what the ZeRO-Infinity paper calls efficiency.
  double efficiency() const { return (forward + backward) / total(); }
};

// `activations` has the sizes of a micro-batch; `options.grad_accumulation_steps` says how many there are. Throws
// ValueError for a rate that is needed and not known, with its name in MachineRates.
PlannedStep plan_step(const ModelShapes& model, const PlanOptions& options, const ActivationOptions& activations,
                      const MachineRates& rates);

// A change that makes the step better, planned again.
struct StepChange {
  std::string change;  // in words: keys, or a second disk
  PlannedStep step;
};
// More micro-batches a step, more ranks, or a second disk: the one that brings the most tokens per second, if that is 5
// % or more. Whether it fits into memory is another question.
std::optional<StepChange> best_change(const ModelShapes& model, const PlanOptions& options,
                                      const ActivationOptions& activations, const MachineRates& rates);

}  // namespace zeroshard
