#pragma once
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "plan_output.h"
#include "zeroshard/step_time.h"

namespace CLI {
class App;
}

// Estimates the time of a step: adds the options of `zeroshard plan` that ask for the time, and prints it.
namespace zeroshard::cli {

struct RateArguments {
  std::string flops, host, link, disk;
};
void add_rate_options(CLI::App& plan, RateArguments& rates);

// Returns nothing if no rate is given. Throws ValueError for a value that is no rate, and if the sizes of a micro-batch
// are missing.
std::optional<MachineRates> read_rates(const RateArguments& rates, const PlanInputs& inputs);

std::string describe_step(const PlanInputs& inputs, const PlanOptions& at);
nlohmann::ordered_json step_as_json(const PlanInputs& inputs, const PlanOptions& at);

}  // namespace zeroshard::cli
