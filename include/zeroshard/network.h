#pragma once
#include "zeroshard/plan.h"

// Counts the bytes that cross the network between hosts in a step.
namespace zeroshard {

// The bytes that each host sends to the others in one step. It receives as many.
struct NetworkBytes {
  double forward = 0;   // parameters that forward passes gather
  double backward = 0;  // parameters that backward passes gather
  double sums = 0;      // gradients
  double whole = 0;     // stage 0: reduced gradients, gathered between the last backward pass and the update
  double refresh = 0;   // new parameters that ranks keep whole, or share with a group of ranks

  double total() const { return forward + backward + sums + whole + refresh; }
};

// Counts the bytes for options.ranks_per_host ranks on each host, without the headers of packets. Leaves out Muon's
// exchange of matrices, and the few bytes with which ranks agree. Throws ValueError if ranks cannot be dealt so: hosts
// must have equally many, and the ranks that share one copy of the states must be part of one host, or whole hosts.
NetworkBytes plan_network(const ModelShapes& model, const PlanOptions& options);
// Does the same for a mere count of parameters, without padding and without units. All of them are gathered in each
// forward and in each backward pass, though a run does not gather the last unit again.
NetworkBytes plan_network(double numel, const PlanOptions& options);

}  // namespace zeroshard
