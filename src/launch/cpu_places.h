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
  int threads = 0;   // threads of each rank; 0: the rank itself decides
  std::string numa;  // the NUMA nodes of the ranks, in words; empty if the ranks are not bound to nodes
};

// Chooses the CPUs of each rank of a job. If the user gives cores, they are divided into equal parts, one for each
// rank. Otherwise, if the host has several NUMA nodes and several ranks, each rank runs on the CPUs of one node, the
// node of its GPU. If there are no GPUs, or their nodes are unknown, the ranks are spread evenly over the nodes. The
// kernel then puts memory that a rank touches first on the rank's node (numa(7), "Default policy"). In all other cases
// ranks are not bound.
CpuPlaces cpu_places(const LaunchOptions& options);

// Assigns ranks to the NUMA nodes of the host that /sys and /proc below `root` describe. `usable` are the CPUs that may
// be used. `gpus` are the numbers of the GPUs, in the order of the ranks.
CpuPlaces numa_places(const std::string& root, const std::vector<int>& usable, const std::vector<std::string>& gpus,
                      int num_ranks);

// Returns the CPUs of a list like "0-3,8", which is the kernel's notation. Returns nothing for any other text.
std::optional<std::vector<int>> parse_cpu_list(const std::string& text);

}  // namespace zeroshard
