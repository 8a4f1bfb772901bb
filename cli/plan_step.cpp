#include "plan_step.h"

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "base/quantity.h"
#include "format.h"
#include "zeroshard/error.h"

namespace zeroshard::cli {
namespace {

using Json = nlohmann::ordered_json;

double rate(const char* option, const std::string& text, const std::optional<double>& value) {
  if (!value || *value <= 0)
    throw ValueError(std::string(option) + " is '" + text + "': give a number above 0, such as 60e12, 40GB or 2.5GiB");
  return *value;
}

std::optional<double> bytes_per_second(const char* option, const std::string& text) {
  if (text.empty()) return std::nullopt;
  return rate(option, text, bytes_in(text));
}

// Calls plan_step(), but first checks that the user gave every rate that the step needs. If a rate is missing, the
// error names the option that the user must give. The error of plan_step() would name only a member of MachineRates,
// such as "host".
PlannedStep planned(const PlanInputs& inputs, const PlanOptions& at) {
  const MachineRates& rates = *inputs.rates;
  const PlannedBytes bytes = inputs.plan(at);
  const bool on_host = !at.on_device || at.state_tier != Tier::kDevice;
  if (on_host && !rates.host)
    throw ValueError(
        "the step's time needs --host-bandwidth, because the CPU updates the states. Give twice the rate of copies "
        "that `zeroshard doctor` shows, divided by the ranks of a host: a copy reads and writes each byte");
  if (at.on_device && on_host && !rates.link)
    throw ValueError("the step's time needs --link: gradients and parameters go between device and host");
  if ((bytes.file.total() > 0 || at.activations_in_files) && !rates.disk)
    throw ValueError(
        "the step's time needs --disk: states, parameters or inputs of layers lie in files. `zeroshard doctor --path "
        "DIR` measures it");
  return plan_step(*inputs.model, at, *inputs.activations, rates);
}

}  // namespace

void add_rate_options(CLI::App& plan, RateArguments& rates) {
  plan.add_option("--flops", rates.flops,
                  "Operations per second that the device reaches in matrix products, such as 60e12: says how long a "
                  "step takes. Needs --sequence-length");
  plan.add_option("--host-bandwidth", rates.host,
                  "Bytes of memory that the CPU reads and writes for one rank per second, together: 40GB");
  plan.add_option("--link", rates.link, "Bytes copied between device and host per second, each way: 12GB");
  plan.add_option("--disk", rates.disk,
                  "Bytes that one rank reads and writes per second at once, together: 2GB (`zeroshard doctor --path`)");
}

std::optional<MachineRates> read_rates(const RateArguments& arguments, const PlanInputs& inputs) {
  MachineRates rates{.host = bytes_per_second("--host-bandwidth", arguments.host),
                     .link = bytes_per_second("--link", arguments.link),
                     .disk = bytes_per_second("--disk", arguments.disk)};
  if (arguments.flops.empty()) {
    if (rates.host || rates.link || rates.disk)
      throw ValueError("--host-bandwidth, --link and --disk are of a step's time: give --flops, too");
    return std::nullopt;
  }
  if (!inputs.activations)
    throw ValueError("--flops needs --sequence-length and --model, because the time of a step depends on its tokens");
  rates.flops = rate("--flops", arguments.flops, count_in(arguments.flops));
  rates.network = inputs.network;
  const int here = inputs.options.ranks_per_host;
  if (here > 0 && inputs.ranks() > here && !rates.network)
    throw ValueError(
        "the step's time needs --network, the bits per second of a host's link to the others, such as 10Gbit");
  return rates;
}

std::string uncounted_communication(const PlanOptions& options) {
  if (options.world_size * options.replicas == 1 || options.ranks_per_host == 1) return "";
  return options.ranks_per_host == 0 ? "communication between ranks" : "communication within a host";
}

std::string describe_step(const PlanInputs& inputs, const PlanOptions& at) {
  const PlannedStep step = planned(inputs, at);
  std::string text = format("stage %d: a step takes %.3g s: ", at.stage, step.total());
  const NetworkTime& network = step.network;
  const bool is_spread = network.total() > 0;
  std::string passes = format("forward %.3g + backward %.3g", step.forward, step.backward);
  if (is_spread) {
    passes = format("max(forward %.3g, network %.3g) + max(backward %.3g, network %.3g)", step.forward, network.forward,
                    step.backward, network.backward);
    if (network.alone > 0) passes += format(" + network %.3g", network.alone);
  }
  text += format("max(%s, copies %.3g, files %.3g)%s max(update %.3g, disk %.3g", passes.c_str(), step.link, step.reads,
                 step.is_late ? " beside" : " +", step.update, step.disk);
  text += is_spread ? format(", network %.3g)", network.update) : ")";
  const double rate = step.tokens / step.total();
  const std::string left_out = uncounted_communication(at);
  text += left_out.empty()
              ? format("; the device computes in %.0f %% of it, %.4g tokens/s\n", 100 * step.efficiency(), rate)
              : format("; at most %.4g tokens/s a rank: %s is not counted\n", rate, left_out.c_str());
  if (const auto change = best_change(*inputs.model, at, *inputs.activations, *inputs.rates))
    text += format("  what would help most: %s: %.4g tokens/s\n", change->change.c_str(),
                   change->step.tokens / change->step.total());
  return text;
}

Json step_as_json(const PlanInputs& inputs, const PlanOptions& at) {
  const PlannedStep step = planned(inputs, at);
  Json json{{"total_s", step.total()},
            {"forward_s", step.forward},
            {"backward_s", step.backward},
            {"copies_s", step.link},
            {"files_s", step.reads},
            {"update_s", step.update},
            {"disk_s", step.disk},
            {"efficiency", uncounted_communication(at).empty() ? Json(step.efficiency()) : Json()},
            {"tokens", step.tokens},
            {"tokens_per_second", step.tokens / step.total()}};
  if (inputs.rates->network) json["network_s"] = step.network.total();
  if (const auto change = best_change(*inputs.model, at, *inputs.activations, *inputs.rates))
    json["best_change"] = {{"change", change->change},
                           {"tokens_per_second", change->step.tokens / change->step.total()}};
  return json;
}

}  // namespace zeroshard::cli
