#pragma once
#include <string>
#include <vector>

#include "zeroshard/launch.h"

namespace zeroshard {

// Returns the "NAME=value" strings of this process's environment.
std::vector<std::string> own_environment();

// The values that differ between the starts of one job.
struct Start {
  int port = 0;  // port of rank 0's store
  int restarts = 0;
  int heartbeat_fd = -1;  // a descriptor that the ranks inherit; -1: none
  std::string interface;  // the network interface that leads to the ranks of other hosts; "" if it is unknown
};

// Returns "NAME=value" strings for one rank. They are the launcher's own environment, the variables that torchrun would
// set for this rank, and zeroshard's own. Also sets OMP_NUM_THREADS and the network interface of Gloo, and on a single
// host that of NCCL. Does not set a variable of these three that the user has set, or whose value is unknown. Leaves
// out two variables of another launcher that may have started this one, because they do not hold for these ranks.
std::vector<std::string> environment_of(const LaunchOptions& options, int local_rank, const Start& start);

// Returns the value of OMP_NUM_THREADS that the launcher sets for each rank. Returns 0 if the launcher does not set
// that variable, because the user has set it, or because this host has a single rank that may use all CPUs.
int omp_num_threads(const LaunchOptions& options);

}  // namespace zeroshard
