#pragma once
#include <optional>
#include <string>
#include <vector>

#include "plan_output.h"

// Chooses the one configuration that `zeroshard plan` recommends, and writes it to a file.
namespace zeroshard::cli {

// Recommends the first planned stage that fits. If none fits, starts from the first planned stage, and recommends the
// smallest change with which the plan fits: a higher stage, offload or more ranks. Returns nothing if no change is
// enough. If no limit is known, recommends the planned stage if there is only one, and returns nothing otherwise.
std::optional<Recommendation> recommend(const PlanInputs& inputs, const std::vector<StagePlan>& plans);

// The inputs that write_recommended() needs in addition to the recommendation.
struct RecommendedFrom {
  const PlanInputs& inputs;
  std::string config_path;  // the configuration file to change; "" for a new one
  // The directory of swap files for a configuration that needs such a directory and names none; "" if the user gave no
  // directory.
  std::string nvme_path;
};
// Writes the recommended configuration to the file `path` as JSON, or to standard output if `path` is "-". Throws
// ValueError if `recommended` is empty, if neither the configuration nor `from` names a directory of swap files that is
// needed, or if a run with this configuration would need more or less memory than was planned. Throws IoError if the
// file cannot be written.
void write_recommended(const std::string& path, const std::optional<Recommendation>& recommended,
                       const RecommendedFrom& from);

}  // namespace zeroshard::cli
