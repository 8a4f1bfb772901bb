#pragma once
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "plan_output.h"
#include "zeroshard/step_time.h"

namespace CLI {
class App;
}

// How long a step takes: the options of `zeroshard plan` that ask for it, and how it is printed.
namespace zeroshard::cli {

struct RateArguments {
  std::string flops, host, link, disk;
};
void add_rate_options(CLI::App& plan, RateArguments& rates);

// Nothing where no rate is given. Throws ValueError for a rate that is none, or without the sizes of a micro-batch.
std::optional<MachineRates> read_rates(const RateArguments& rates, const PlanInputs& inputs);

std::string describe_step(const PlanInputs& inputs, const PlanOptions& at);
nlohmann::ordered_json step_as_json(const PlanInputs& inputs, const PlanOptions& at);

}  // namespace zeroshard::cli
