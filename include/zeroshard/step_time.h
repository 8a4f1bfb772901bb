#pragma once
#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "zeroshard/activations.h"
#include "zeroshard/plan.h"

// Estimates the time of a step from the shapes of a model and the rates of a machine. The estimate leaves out
// communication between ranks, operators that are not matrix products, and the first step.
namespace zeroshard {

// The rates of one rank per second, as measured on the machine. Unset: not known.
struct MachineRates {
  double flops = 0;            // floating-point operations of matrix products, in the dtype of compute
  std::optional<double> host;  // bytes that the CPU reads from and writes to memory, together
  std::optional<double> link;  // bytes copied between device and host, in each direction
  std::optional<double> disk;  // bytes of swap files that are read and written at the same time, together
};

// The seconds of one step of a rank: all its micro-batches and the update.
struct PlannedStep {
  double forward = 0, backward = 0;  // sum over all micro-batches; layers that are computed again count as backward
  double link = 0;                   // copies between device and host; they overlap forward and backward
  double reads = 0;      // reads of parameters and layer inputs from files; they overlap forward and backward
  double update = 0;     // update by the CPU
  double disk = 0;       // swap file transfers; they overlap the update
  double tokens = 0;     // tokens of a step on this rank
  bool is_late = false;  // the update and swap file transfers overlap the passes of the next step

  double passes() const { return std::max({forward + backward, link, reads}); }
  double after() const { return std::max(update, disk); }
  double total() const { return is_late ? std::max(passes(), after()) : passes() + after(); }
  // The share of the step in which the device computes. The ZeRO-Infinity paper calls it efficiency.
  double efficiency() const { return (forward + backward) / total(); }
};

// Plans a step. `activations` has the sizes of a micro-batch; `options.grad_accumulation_steps` is the number of
// micro-batches. Throws ValueError for a rate that is needed but not known; the message has its name in MachineRates.
PlannedStep plan_step(const ModelShapes& model, const PlanOptions& options, const ActivationOptions& activations,
                      const MachineRates& rates);

// A change that makes the step faster, with the plan of the changed step.
struct StepChange {
  std::string change;  // the change in words: configuration keys, or a second disk
  PlannedStep step;
};
// Tries more micro-batches per step, more ranks, and a second disk. Returns the change that brings the most tokens per
// second, if the gain is 5 % or more. The function does not check whether the change fits into memory.
std::optional<StepChange> best_change(const ModelShapes& model, const PlanOptions& options,
                                      const ActivationOptions& activations, const MachineRates& rates);

}  // namespace zeroshard
