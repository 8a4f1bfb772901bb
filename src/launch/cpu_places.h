#pragma once
#include <optional>
#include <string>
#include <vector>

#include "zeroshard/launch.h"

// Which CPUs the ranks of this host run on.
namespace zeroshard {

struct CpuPlaces {
  std::vector<std::vector<int>> cpus;  // by local rank; empty: each runs on all that the launcher may use
  int threads = 0;                     // of each rank; 0: as many as it likes
  std::string numa;                    // in words, where ranks are bound to NUMA nodes
};

// Cores that the user gives are divided into equal parts. Otherwise, on a host with several NUMA nodes, each of several
// ranks runs on the CPUs of one: that of its GPU, or else as many ranks on each node. Memory that a rank touches first
// then lies on its node (numa(7), "Default policy"). Where neither works out, ranks are not bound.
CpuPlaces cpu_places(const LaunchOptions& options);

// The same for these CPUs and GPUs (by number, in the order of the ranks), and the host that /sys and /proc below
// `root` describe.
CpuPlaces numa_places(const std::string& root, const std::vector<int>& usable, const std::vector<std::string>& gpus,
                      int num_ranks);

// The CPUs of a list like "0-3,8", as the kernel writes it; nothing for another text.
std::optional<std::vector<int>> parse_cpu_list(const std::string& text);

}  // namespace zeroshard
