#pragma once
#include <string>

namespace zeroshard {

// Returns a warning if updates on the host would be slow, because torch has so few threads (`num_threads`) that they
// use at most half of a rank's share of the CPUs (`num_cpus` / `num_ranks`). Returns "" otherwise.
std::string problem_of_few_threads(int num_threads, int num_cpus, int num_ranks);

// On rank 0, logs the warning of problem_of_few_threads(), if there is one. `ranks_of_host` is the number of ranks on
// this host. Counts only CPUs that this process may use.
void warn_of_few_threads(int ranks_of_host, int rank);

}  // namespace zeroshard
