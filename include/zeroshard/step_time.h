#pragma once
#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "zeroshard/activations.h"
#include "zeroshard/network.h"
#include "zeroshard/plan.h"

// Estimates the time of a step from the shapes of a model and the rates of a machine. The estimate leaves out the
// communication between ranks of one host, operators of the model that are not matrix products, and the additional time
// of the first step.
namespace zeroshard {

// The rates of a machine per second, as measured. `network` is the rate of a host, and all others are rates of one
// rank. An unset rate is not known.
struct MachineRates {
  double flops = 0;            // floating-point operations in matrix products of the compute dtype
  std::optional<double> host;  // bytes that the CPU reads from memory plus bytes that it writes
  std::optional<double> link;  // bytes copied between device and host, in each direction
  std::optional<double> disk;  // bytes of swap files, read plus written, while reads and writes overlap
  std::optional<double> network = std::nullopt;  // bytes between a host and the others, in each direction
};

// The seconds for which the network between hosts is busy in a step.
struct NetworkTime {
  double forward = 0, backward = 0;  // during forward passes, during backward passes
  double update = 0;                 // while parameters are updated
  double alone = 0;                  // while nothing else runs

  double total() const { return forward + backward + update + alone; }
};

// The seconds of one step of a rank, unless a member's comment says otherwise. A step consists of all its micro-batches
// and the update.
struct PlannedStep {
  double forward = 0, backward = 0;  // of all micro-batches; recomputed layers count as backward
  double link = 0;                   // copies between device and host; they overlap forward and backward
  double reads = 0;      // file transfers of parameters, layer inputs and gradients during forward and backward
  double update = 0;     // update by the CPU; an update by a device counts as 0
  double disk = 0;       // swap file transfers; they overlap the update
  double tokens = 0;     // tokens of a step on this rank
  bool is_late = false;  // true: the update and the swap file transfers overlap the passes of the next step
  NetworkTime network;

  double passes() const {
    return std::max(
        {std::max(forward, network.forward) + std::max(backward, network.backward) + network.alone, link, reads});
  }
  double after() const { return std::max({update, disk, network.update}); }
  double total() const { return is_late ? std::max({passes(), after(), network.total()}) : passes() + after(); }
  // Returns the share of the step in which the device computes forward and backward. The ZeRO-Infinity paper calls this
  // share efficiency.
  double efficiency() const { return (forward + backward) / total(); }
};

// Plans a step. `activations` has the sizes of a micro-batch, and `options.grad_accumulation_steps` is the number of
// micro-batches. Throws ValueError if flops is not positive, if another needed rate is unset (the message names the
// member of MachineRates), or if the model cannot be planned with these options.
PlannedStep plan_step(const ModelShapes& model, const PlanOptions& options, const ActivationOptions& activations,
                      const MachineRates& rates);

// A change that makes the step faster, and the plan of the step after the change.
struct StepChange {
  std::string change;  // the change in words: configuration keys, more ranks or a second disk
  PlannedStep step;
};
// Tries up to three changes, each alone: twice the micro-batches per step, twice the ranks, and a second disk. Twice
// the ranks is tried only from stage 1 on. With a known number of ranks on each host, it is tried only if
// options.world_size ranks fill whole hosts and the network's rate is known. A second disk is tried only if states lie
// in files. Returns the change with which a rank processes the most tokens per second, or nothing if the gain is below
// 5 %. Does not check whether the change fits into memory.
std::optional<StepChange> best_change(const ModelShapes& model, const PlanOptions& options,
                                      const ActivationOptions& activations, const MachineRates& rates);

}  // namespace zeroshard
