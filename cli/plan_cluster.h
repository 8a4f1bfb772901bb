#pragma once
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "plan_output.h"

namespace CLI {
class App;
}

// The part of `zeroshard plan` about several hosts. These functions read how ranks are distributed over the hosts, and
// say how many bytes cross the network between hosts in a step.
namespace zeroshard::cli {

struct RankArguments {
  std::optional<int> world_size;
  std::string cluster, network;
};
void add_rank_options(CLI::App& plan, RankArguments& arguments);

// The ranks that the user plans for. ranks_per_host is 0 unless the user gives --cluster.
struct PlannedRanks {
  int world_size = 1, ranks_per_host = 0;
  std::optional<double> network;  // bytes of payload per second, in each direction of a host's link
};
// Returns the ranks. Throws ValueError if no number of ranks is given, if a value cannot be read, or if values
// contradict one another.
PlannedRanks read_ranks(const RankArguments& arguments);

// Throws ValueError if the user gave --cluster and the ranks cannot be distributed over the hosts as plan_network()
// requires. Checks this at each planned stage.
void check_cluster(const PlanInputs& inputs);
// Both functions return the bytes that cross the network in a step with the options `at`, as a line of text and as
// JSON. If the network's rate is known, they also return the seconds that the network needs for these bytes.
std::string describe_network(const PlanInputs& inputs, const PlanOptions& at);
nlohmann::ordered_json network_as_json(const PlanInputs& inputs, const PlanOptions& at);

}  // namespace zeroshard::cli
