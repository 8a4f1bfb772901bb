#include "supervisor_options.h"

#include <CLI/CLI.hpp>

#include "numbers.h"
#include "zeroshard/launch.h"

namespace zeroshard::cli {

void add_supervisor_options(CLI::App& app, LaunchOptions& options) {
  add_seconds(app, "--grace-period,--grace_period", options.grace_period_s,
              "Seconds that ranks have to end after a signal before they are killed (default: 30)");
  add_seconds(app, "--stall-timeout,--stall_timeout", options.stall_timeout_s,
              "Seconds after which a stopped rank ends the job (default: 10; 0: never)");
  add_seconds(app, "--hang-timeout,--hang_timeout", options.hang_timeout_s,
              "Seconds without progress of the ranks after which the job ends, with a report (default: 0, never)");
  add_int(app, "--max-restarts,--max_restarts", {.min = 0}, options.max_restarts,
          "How often a job that fails or hangs starts again, all ranks anew (default: 0)");
  add_int(app, "--min-ranks,--min_ranks", {.min = 1}, options.min_ranks,
          "With how few ranks it may start again, when one keeps failing (default: as many as before)");
  const auto bind = [&options](const std::string& how) { options.bind_numa = how == "node"; };
  app.add_option_function<std::string>("--numa-binding,--numa_binding", bind,
                                       "node: of several NUMA nodes each rank runs on that of its GPU (default); none")
      ->check(CLI::IsMember({"node", "none"}));
  app.add_option("--log-dir,--log_dir", options.log_dir, "Folder for rank-N.log, all that each rank writes");
}

}  // namespace zeroshard::cli
