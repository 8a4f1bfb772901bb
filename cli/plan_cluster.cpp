#include "plan_cluster.h"

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "base/format.h"
#include "base/quantity.h"
#include "format.h"
#include "numbers.h"
#include "zeroshard/error.h"

namespace zeroshard::cli {
namespace {

using Json = nlohmann::ordered_json;

// The share of a link's bits that is TCP payload. A full packet takes 1538 bytes on Ethernet, and 1448 of them are
// payload.
constexpr double kPayload = 1448. / 1538;

PlannedRanks read_cluster(const std::string& text) {
  const auto fail = [&] {
    throw ValueError(concat("--cluster is '", text,
                            "': give the number of hosts and the ranks on each of them, such as 2x8, at most ",
                            kMaxPlannedWorldSize, " ranks. All hosts have equally many ranks"));
  };
  const size_t x = text.find('x');
  const std::string digits = text.substr(0, x) + (x == text.npos ? "" : text.substr(x + 1));
  if (x == 0 || x >= text.size() - 1 || digits.find_first_not_of("0123456789") != digits.npos || digits.size() > 9)
    fail();
  const int64_t hosts = std::stoll(text.substr(0, x)), ranks = std::stoll(text.substr(x + 1));
  if (hosts == 0 || ranks == 0 || hosts * ranks > kMaxPlannedWorldSize) fail();
  return {.world_size = int(hosts * ranks), .ranks_per_host = int(ranks), .network = {}};
}

double read_network(const std::string& text) {
  const std::optional<double> bits = bits_in(text);
  if (!bits || *bits <= 0)
    throw ValueError("--network is '" + text +
                     "': give the bits per second of a host's link to the others in each direction, as networks are "
                     "sold, with their unit, such as 1Gbit or 100Gbit/s");
  return *bits / 8 * kPayload;
}

NetworkBytes network_bytes(const PlanInputs& inputs, const PlanOptions& at) {
  return inputs.model ? plan_network(*inputs.model, at) : plan_network(double(inputs.numel()), at);
}

}  // namespace

void add_rank_options(CLI::App& plan, RankArguments& arguments) {
  add_int(plan, "--world-size", {.min = 1, .max = kMaxPlannedWorldSize}, arguments.world_size, "Number of ranks");
  plan.add_option("--cluster", arguments.cluster,
                  "Hosts x ranks on each of them, such as 2x8: says what crosses the network between them in a step");
  plan.add_option("--network", arguments.network,
                  "Bits per second of a host's link to the others, each way: 1Gbit, 100Gbit. Needs --cluster");
}

PlannedRanks read_ranks(const RankArguments& arguments) {
  if (arguments.cluster.empty()) {
    if (!arguments.network.empty())
      throw ValueError("--network is of the link between hosts: give --cluster, too, such as 2x8");
    if (!arguments.world_size) throw ValueError("give --world-size, the number of ranks");
    return {.world_size = *arguments.world_size, .ranks_per_host = 0, .network = {}};
  }
  PlannedRanks ranks = read_cluster(arguments.cluster);
  if (arguments.world_size && *arguments.world_size != ranks.world_size)
    throw ValueError(concat("--world-size is ", *arguments.world_size, ", and --cluster ", arguments.cluster, " has ",
                            ranks.world_size, " ranks: give one of both"));
  if (!arguments.network.empty()) ranks.network = read_network(arguments.network);
  return ranks;
}

void check_cluster(const PlanInputs& inputs) {
  if (inputs.options.ranks_per_host == 0) return;
  for (const int stage : inputs.stages) static_cast<void>(network_bytes(inputs, inputs.at_stage(stage)));
}

std::string describe_network(const PlanInputs& inputs, const PlanOptions& at) {
  const NetworkBytes bytes = network_bytes(inputs, at);
  std::string text =
      format("stage %d, %d host(s) of %d rank(s): ", at.stage, inputs.ranks() / at.ranks_per_host, at.ranks_per_host);
  if (bytes.total() == 0) return text + "nothing crosses the network\n";
  text += format("each host sends %.4g MB a step and receives as much", bytes.total() / 1e6);
  if (inputs.network) text += format(", in %.3g s", bytes.total() / *inputs.network);
  std::string parts;
  const auto add = [&](const char* what, double part) {
    if (part > 0) parts += concat(parts.empty() ? ": " : ", ", what, format(" %.4g", part / 1e6));
  };
  add("gathers for forward", bytes.forward);
  add("for backward", bytes.backward);
  add("gradients", bytes.sums);
  add("their sums", bytes.whole);
  add("new parameters", bytes.refresh);
  return text + parts + "\n";
}

Json network_as_json(const PlanInputs& inputs, const PlanOptions& at) {
  const NetworkBytes bytes = network_bytes(inputs, at);
  Json json{{"forward_bytes", bytes.forward},     {"backward_bytes", bytes.backward}, {"gradients_bytes", bytes.sums},
            {"gradient_sums_bytes", bytes.whole}, {"refresh_bytes", bytes.refresh},   {"total_bytes", bytes.total()}};
  if (inputs.network) json["seconds"] = bytes.total() / *inputs.network;
  return json;
}

}  // namespace zeroshard::cli
