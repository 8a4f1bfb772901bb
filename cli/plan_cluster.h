#pragma once
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "plan_output.h"

namespace CLI {
class App;
}

// The part of `zeroshard plan` about several hosts: how ranks are dealt to them, and what crosses the network between
// them in a step.
namespace zeroshard::cli {

struct RankArguments {
  std::optional<int> world_size;
  std::string cluster, network;
};
void add_rank_options(CLI::App& plan, RankArguments& arguments);

// The ranks that the user plans for. With --cluster, ranks_per_host is set.
struct PlannedRanks {
  int world_size = 1, ranks_per_host = 0;
  std::optional<double> network;  // bytes of payload per second, in each direction of a host's link
};
// Throws ValueError if no number of ranks is given, if a value cannot be read, or if values contradict one another.
PlannedRanks read_ranks(const RankArguments& arguments);

// Throws ValueError if the ranks that share one copy of the states cannot be dealt to the hosts.
void check_cluster(const PlanInputs& inputs);
// Returns a line about the bytes of a step at the stage of `at`.
std::string describe_network(const PlanInputs& inputs, const PlanOptions& at);
nlohmann::ordered_json network_as_json(const PlanInputs& inputs, const PlanOptions& at);

}  // namespace zeroshard::cli
