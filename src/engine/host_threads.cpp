#include "engine/host_threads.h"

#include <ATen/Parallel.h>
#include <sched.h>

#include "base/format.h"
#include "base/log.h"

namespace zeroshard {

std::string problem_of_few_threads(int num_threads, int num_cpus, int num_ranks) {
  const int fair = num_cpus / num_ranks;
  if (2 * num_threads > fair) return "";
  return concat("optimizer states are updated on the host, by ", num_threads, num_threads == 1 ? " thread" : " threads",
                " of each rank, where ", num_cpus, " CPUs are there for ", num_ranks,
                num_ranks == 1 ? " rank" : " ranks", ": steps take longer than they need. Set OMP_NUM_THREADS=", fair,
                " (torchrun sets 1), or start the ranks by `zeroshard run`");
}

void warn_of_few_threads(int ranks_of_host, int rank) {
  cpu_set_t cpus;
  CPU_ZERO(&cpus);
  if (rank != 0 || ::sched_getaffinity(0, sizeof cpus, &cpus) != 0) return;
  const std::string problem = problem_of_few_threads(at::get_num_threads(), CPU_COUNT(&cpus), ranks_of_host);
  if (!problem.empty()) log(LogLevel::kWarning, problem);
}

}  // namespace zeroshard
