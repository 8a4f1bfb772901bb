#pragma once
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "plan_output.h"
#include "zeroshard/step_time.h"

namespace CLI {
class App;
}

// The part of `zeroshard plan` about the time of a step. These functions add the options for the machine's rates, and
// return the estimated time as text and as JSON.
namespace zeroshard::cli {

struct RateArguments {
  std::string flops, host, link, disk;
};
void add_rate_options(CLI::App& plan, RateArguments& rates);

// Returns the rates that the user gave, or nothing if the user gave none. Throws ValueError if a value is not a rate,
// if another rate is given without --flops, if --flops is given without --sequence-length and --model, or if --flops is
// given for several hosts without --network.
std::optional<MachineRates> read_rates(const RateArguments& rates, const PlanInputs& inputs);

// Returns text about the communication that the time of a step leaves out, or "" if there is none.
std::string uncounted_communication(const PlanOptions& options);
std::string describe_step(const PlanInputs& inputs, const PlanOptions& at);
nlohmann::ordered_json step_as_json(const PlanInputs& inputs, const PlanOptions& at);

}  // namespace zeroshard::cli
