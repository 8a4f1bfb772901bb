#pragma once
#include <optional>
#include <string>
#include <vector>

#include "zeroshard/launch.h"

// Says on which CPUs the ranks of this host run.
namespace zeroshard {

struct CpuPlaces {
  // The CPUs of each local rank. If empty, each rank runs on all CPUs that the launcher may use.
  std::vector<std::vector<int>> cpus;
  int threads = 0;   // OMP_NUM_THREADS of each rank; 0: the rank itself decides
  std::string numa;  // a text for the log if ranks are bound to NUMA nodes; otherwise empty
};

// Chooses the CPUs and the number of threads of each rank of this host. If the user gives cores, divides them into
// equal parts, one for each rank; cores that are left over stay unused. Otherwise, if `bind_numa` is true, binds the
// ranks if numa_places() can. If no rank is bound and there are several ranks, each rank has as many threads as its
// equal share of the CPUs. A single rank that is not bound decides its number of threads itself.
CpuPlaces cpu_places(const LaunchOptions& options);

// Binds each rank to the usable CPUs of one NUMA node of the host that /sys and /proc below `root` describe. The kernel
// then puts memory that a rank touches first on the rank's node (numa(7), "Default policy"). The node is that of the
// rank's GPU. If some rank has no GPU, or the node of some GPU is unknown or has no usable CPUs, spreads the ranks
// evenly over the nodes. Binds no rank if the ranks cannot be spread evenly, or if there is only one rank or one node
// with usable CPUs. `usable` are the CPUs that may be used. `gpus` are the numbers of the GPUs, in the order of the
// ranks. The node of a GPU with a name that is no number is unknown.
CpuPlaces numa_places(const std::string& root, const std::vector<int>& usable, const std::vector<std::string>& gpus,
                      int num_ranks);

// Returns the CPUs of a list like "0-3,8", which is the kernel's notation. An empty text is an empty list. Returns
// nothing for any other text, and for CPUs above 4095.
std::optional<std::vector<int>> parse_cpu_list(const std::string& text);

}  // namespace zeroshard
