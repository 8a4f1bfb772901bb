#pragma once
#include <string>
#include <vector>

#include "zeroshard/launch.h"

namespace zeroshard {

// "NAME=value" for one rank: the launcher's own environment with torchrun's variables of this rank.
std::vector<std::string> environment_of(const LaunchOptions& options, int local_rank, int port);

// How many threads OMP_NUM_THREADS gives each rank; 0: the user has set it, or there is one rank on this host.
int omp_num_threads(const LaunchOptions& options);

}  // namespace zeroshard
