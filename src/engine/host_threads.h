#pragma once
#include <string>

namespace zeroshard {

// Updates on the host run on torch's threads. What to tell where there are few of them: less than half of what each of
// `num_ranks` ranks could have of `num_cpus`. "" otherwise.
std::string problem_of_few_threads(int num_threads, int num_cpus, int num_ranks);

// Rank 0 warns of that. `ranks_of_host`: those that share this host with it.
void warn_of_few_threads(int ranks_of_host, int rank);

}  // namespace zeroshard
