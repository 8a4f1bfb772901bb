#pragma once
#include <optional>
#include <string>
#include <vector>

#include "plan_output.h"

// Chooses the one configuration that `zeroshard plan` recommends, and writes it to a file.
namespace zeroshard::cli {

// Returns the lowest planned stage that fits, or the smallest change with which a stage fits. Returns nothing if
// nothing fits, or if no limit is known and several stages are planned.
std::optional<Recommendation> recommend(const PlanInputs& inputs, const std::vector<StagePlan>& plans);

// The inputs from which a recommended configuration is written.
struct RecommendedFrom {
  const PlanInputs& inputs;
  std::string config_path;  // the file that it changes; "" for a new file
  // Directory of swap files, for a configuration that needs one and names none; "" if the user gives no directory.
  std::string nvme_path;
};
// Writes the recommendation as JSON, to standard output if `path` is "-". Throws ValueError if there is no
// recommendation, or if the file would not mean what was planned.
void write_recommended(const std::string& path, const std::optional<Recommendation>& recommended,
                       const RecommendedFrom& from);

}  // namespace zeroshard::cli
