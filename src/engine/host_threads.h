#pragma once
#include <string>

namespace zeroshard {

// Returns a warning if updates on the host would be slow, because torch has less than half of its rank's share of the
// CPUs (`num_cpus` / `num_ranks`) as threads. Returns "" otherwise.
std::string problem_of_few_threads(int num_threads, int num_cpus, int num_ranks);

// Logs this warning on rank 0. `ranks_of_host` is the number of ranks on this host.
void warn_of_few_threads(int ranks_of_host, int rank);

}  // namespace zeroshard
