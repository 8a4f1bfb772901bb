#pragma once
#include <optional>
#include <string>
#include <vector>

#include "plan_output.h"

// Chooses the one configuration that `zeroshard plan` recommends, and writes it to a file.
namespace zeroshard::cli {

// Returns the lowest planned stage that fits. If none fits, returns the smallest change with which a stage fits, or
// nothing if no change is enough. If no limit is known, returns the planned stage, or nothing if several stages are
// planned.
std::optional<Recommendation> recommend(const PlanInputs& inputs, const std::vector<StagePlan>& plans);

// The inputs that write_recommended() needs in addition to the recommendation.
struct RecommendedFrom {
  const PlanInputs& inputs;
  std::string config_path;  // the configuration file to change; "" for a new one
  // Directory of swap files, used if the recommended configuration needs one and names none. "" if the user gives none.
  std::string nvme_path;
};
// Writes the recommended configuration to the file `path` as JSON, or to standard output if `path` is "-". Throws
// ValueError if `recommended` is empty, if a directory of swap files is missing, or if a run of the configuration would
// need other memory than was planned. Throws IoError if the file cannot be written.
void write_recommended(const std::string& path, const std::optional<Recommendation>& recommended,
                       const RecommendedFrom& from);

}  // namespace zeroshard::cli
