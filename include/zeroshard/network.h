#pragma once
#include "zeroshard/plan.h"

// Counts the bytes that cross the network between hosts in a step.
namespace zeroshard {

// The bytes that each host sends to other hosts in one step. Each host receives as many.
struct NetworkBytes {
  double forward = 0;   // parameters that forward passes gather
  double backward = 0;  // parameters that backward passes gather
  double sums = 0;      // gradients that are summed over ranks
  double whole = 0;     // stage 0: reduced gradients, gathered between the last backward pass and the update
  double refresh = 0;   // updated parameters, for ranks that keep them whole and for groups that share the states

  double total() const { return forward + backward + sums + whole + refresh; }
};

// Counts the bytes for options.ranks_per_host ranks on each host. If that is 0, all ranks are on one host, and nothing
// crosses the network. Leaves out packet headers, Muon's exchange of matrices, and the few bytes by which ranks make
// decisions together. Throws ValueError if the ranks do not fill the hosts evenly. Also throws ValueError if the
// options.world_size ranks that share one copy of the parameters neither divide one host evenly nor fill whole hosts.
NetworkBytes plan_network(const ModelShapes& model, const PlanOptions& options);
// Does the same for a mere count of parameters, without padding and without units. If parameters are sharded, it counts
// a gather of all parameters in each forward and in each backward pass. A run gathers less, because the last unit stays
// gathered for backward.
NetworkBytes plan_network(double numel, const PlanOptions& options);

}  // namespace zeroshard
