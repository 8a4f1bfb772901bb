#pragma once
#include <optional>
#include <string>
#include <vector>

#include "plan_output.h"

// The one configuration that `zeroshard plan` recommends, and its file.
namespace zeroshard::cli {

// The lowest planned stage that fits, or the smallest change with which one does. Nothing where nothing fits, or where
// no limit is known and several stages are planned.
std::optional<Recommendation> recommend(const PlanInputs& inputs, const std::vector<StagePlan>& plans);

// A written configuration is made of these.
struct RecommendedFrom {
  const PlanInputs& inputs;
  std::string config_path;  // the file that it changes; "": a new one
  std::string nvme_path;    // of swap files, where it asks for some and the file names no directory; "": not given
};
// Writes it as JSON; to standard output where `path` is "-". Throws ValueError where there is none, or where it would
// not mean what was planned.
void write_recommended(const std::string& path, const std::optional<Recommendation>& recommended,
                       const RecommendedFrom& from);

}  // namespace zeroshard::cli
