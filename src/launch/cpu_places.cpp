#include "launch/cpu_places.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <sstream>
#include <string_view>

#include "base/format.h"

namespace zeroshard {
namespace {

namespace fs = std::filesystem;

std::optional<int> to_number(std::string_view text) {
  int number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

std::string first_line(const fs::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// Returns the `usable` CPUs of each node, by the node's number. Leaves out nodes without usable CPUs. Returns an empty
// map if the kernel does not report nodes.
std::map<int, std::vector<int>> nodes_of(const fs::path& root, const std::vector<int>& usable) {
  std::map<int, std::vector<int>> nodes;
  std::error_code failed;
  for (const auto& entry : fs::directory_iterator(root / "sys/devices/system/node", failed)) {
    const std::string name = entry.path().filename();
    const std::optional<int> number = name.starts_with("node") ? to_number(name.substr(4)) : std::nullopt;
    if (!number) continue;
    const std::optional<std::vector<int>> cpus = parse_cpu_list(first_line(entry.path() / "cpulist"));
    if (!cpus) continue;
    for (const int cpu : *cpus)
      if (std::find(usable.begin(), usable.end(), cpu) != usable.end()) nodes[*number].push_back(cpu);
  }
  return nodes;
}

// Returns the node of each GPU, in the order of the GPUs' bus addresses, which is the order of nvidia-smi. A GPU has no
// value, or -1, if the kernel does not know the node.
std::vector<std::optional<int>> nodes_of_all_gpus(const fs::path& root) {
  std::vector<std::string> addresses;
  std::error_code failed;
  for (const auto& entry : fs::directory_iterator(root / "proc/driver/nvidia/gpus", failed))
    addresses.push_back(entry.path().filename());
  std::sort(addresses.begin(), addresses.end());
  std::vector<std::optional<int>> nodes;
  nodes.reserve(addresses.size());
  for (const std::string& address : addresses)
    nodes.push_back(to_number(first_line(root / "sys/bus/pci/devices" / address / "numa_node")));
  return nodes;
}

// Returns the node of each local rank's GPU. Returns nothing if some rank has no GPU, or if the node of its GPU is
// unknown or has no usable CPUs.
std::optional<std::vector<int>> nodes_of_gpus(const fs::path& root, const std::vector<std::string>& gpus,
                                              const std::map<int, std::vector<int>>& nodes, int num_ranks) {
  if (gpus.size() < size_t(num_ranks)) return std::nullopt;
  const std::vector<std::optional<int>> all = nodes_of_all_gpus(root);
  std::vector<int> result;
  for (size_t rank = 0; rank < size_t(num_ranks); ++rank) {
    const std::optional<int> gpu = to_number(gpus[rank]);
    if (!gpu || *gpu < 0 || size_t(*gpu) >= all.size()) return std::nullopt;
    const std::optional<int> node = all[size_t(*gpu)];
    if (!node || !nodes.contains(*node)) return std::nullopt;
    result.push_back(*node);
  }
  return result;
}

std::optional<std::vector<int>> as_many_on_each(const std::map<int, std::vector<int>>& nodes, int num_ranks) {
  if (size_t(num_ranks) % nodes.size() != 0) return std::nullopt;
  std::vector<int> result;
  for (const auto& [node, cpus] : nodes) result.insert(result.end(), size_t(num_ranks) / nodes.size(), node);
  return result;
}

CpuPlaces parts_of(const std::vector<int>& cores, int num_ranks) {
  const size_t each = cores.size() / size_t(num_ranks);  // if cores remain, they stay unused
  CpuPlaces places{.cpus = {}, .threads = std::max(1, int(each)), .numa = {}};
  for (size_t rank = 0; rank < size_t(num_ranks); ++rank) {
    const auto begin = cores.begin() + std::ptrdiff_t(rank * each);
    places.cpus.emplace_back(begin, begin + std::ptrdiff_t(each));
  }
  return places;
}

}  // namespace

std::optional<std::vector<int>> parse_cpu_list(const std::string& text) {
  constexpr int kLast = 4095;
  std::vector<int> cpus;
  std::istringstream parts(text);
  for (std::string part; std::getline(parts, part, ',');) {
    const size_t dash = part.find('-');
    const std::optional<int> first = to_number(part.substr(0, dash));
    const std::optional<int> last = dash == part.npos ? first : to_number(part.substr(dash + 1));
    if (!first || !last || *first < 0 || *last < *first || *last > kLast) return std::nullopt;
    for (int cpu = *first; cpu <= *last; ++cpu) cpus.push_back(cpu);
  }
  return cpus;
}

CpuPlaces numa_places(const std::string& root, const std::vector<int>& usable, const std::vector<std::string>& gpus,
                      int num_ranks) {
  const std::map<int, std::vector<int>> nodes = nodes_of(root, usable);
  if (num_ranks < 2 || nodes.size() < 2) return {};
  const std::optional<std::vector<int>> of_gpus = nodes_of_gpus(root, gpus, nodes, num_ranks);
  const std::optional<std::vector<int>> node_of = of_gpus ? of_gpus : as_many_on_each(nodes, num_ranks);
  if (!node_of) return {};
  CpuPlaces places;
  places.threads = int(usable.size());
  for (const int node : *node_of) {
    const std::vector<int>& cpus = nodes.at(node);
    const auto ranks = int(std::count(node_of->begin(), node_of->end(), node));
    places.cpus.push_back(cpus);
    places.threads = std::clamp(int(cpus.size()) / ranks, 1, places.threads);
  }
  places.numa =
      concat("each rank runs on the CPUs of one of ", nodes.size(), " NUMA nodes", of_gpus ? ", that of its GPU" : "");
  return places;
}

CpuPlaces cpu_places(const LaunchOptions& options) {
  if (!options.cores.empty()) return parts_of(options.cores, options.nproc);
  if (options.bind_numa) {
    CpuPlaces places = numa_places(options.system_root, usable_cpus(), visible_gpus(), options.nproc);
    if (!places.cpus.empty()) return places;
  }
  if (options.nproc == 1) return {};
  return {.cpus = {}, .threads = std::max(1, count_cpus() / options.nproc), .numa = {}};
}

}  // namespace zeroshard
