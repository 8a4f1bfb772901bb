#pragma once
#include <string>
#include <vector>

#include "zeroshard/launch.h"

namespace zeroshard {

// The values that differ between the starts of one job.
struct Start {
  int port = 0;  // of rank 0's store
  int restarts = 0;
  int heartbeat_fd = -1;  // the ranks inherit it; -1: none
  std::string interface;  // the network interface that leads to the ranks of other hosts; "": unknown
};

// "NAME=value" for one rank: the launcher's own environment with torchrun's variables of this rank.
std::vector<std::string> environment_of(const LaunchOptions& options, int local_rank, const Start& start);

// The threads that OMP_NUM_THREADS gives each rank; 0: the user has set it, or there is one rank on this host.
int omp_num_threads(const LaunchOptions& options);

}  // namespace zeroshard
