#include "launch/environment.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <string_view>

#include "launch/cpu_places.h"
#include "launch/heartbeat_layout.h"
#include "launch/stack_dump.h"

namespace zeroshard {
namespace {

using Variables = std::map<std::string, std::string, std::less<>>;

Variables variables_of(const LaunchOptions& options, int local_rank, const Start& start) {
  const auto text = [](int value) { return std::to_string(value); };
  const int rank = options.node_rank * options.nproc + local_rank;
  const int world_size = options.nnodes * options.nproc;
  Variables variables{{"RANK", text(rank)},
                      {"LOCAL_RANK", text(local_rank)},
                      {"WORLD_SIZE", text(world_size)},
                      {"LOCAL_WORLD_SIZE", text(options.nproc)},
                      {"GROUP_RANK", text(options.node_rank)},
                      {"GROUP_WORLD_SIZE", text(options.nnodes)},
                      {"ROLE_NAME", "default"},
                      {"ROLE_RANK", text(rank)},
                      {"ROLE_WORLD_SIZE", text(world_size)},
                      {"MASTER_ADDR", options.master_addr},
                      {"MASTER_PORT", text(start.port)},
                      {"TORCHELASTIC_RESTART_COUNT", text(start.restarts)},
                      {"TORCHELASTIC_MAX_RESTARTS", text(options.max_restarts)},
                      {"TORCHELASTIC_RUN_ID", "none"},
                      {"ZEROSHARD_RESTART_COUNT", text(start.restarts)},
                      {"ZEROSHARD_STACK_SIGNAL", text(stack_dump_signal())},
                      {"ZEROSHARD_LAUNCHER", "1"}};
  if (start.heartbeat_fd >= 0) variables[heartbeat::kVariable] = text(start.heartbeat_fd);
  if (const int threads = omp_num_threads(options); threads > 0) variables["OMP_NUM_THREADS"] = text(threads);
  // The ranks of a single host use the loopback interface, so that they do not listen beyond the host. If there are
  // several hosts, only Gloo gets an interface, because NCCL itself finds the interfaces, and can use many.
  const std::string interface = options.nnodes == 1 ? "lo" : start.interface;
  for (const char* name : {"GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"}) {
    const bool is_chosen = options.nnodes == 1 || name[0] == 'G';
    if (is_chosen && !interface.empty() && std::getenv(name) == nullptr) variables[name] = interface;
  }
  return variables;
}

}  // namespace

std::vector<std::string> own_environment() {
  std::vector<std::string> variables;
  for (char** entry = environ; *entry != nullptr; ++entry) variables.emplace_back(*entry);
  return variables;
}

int omp_num_threads(const LaunchOptions& options) {
  return std::getenv("OMP_NUM_THREADS") != nullptr ? 0 : cpu_places(options).threads;
}

std::vector<std::string> environment_of(const LaunchOptions& options, int local_rank, const Start& start) {
  const Variables variables = variables_of(options, local_rank, start);
  std::vector<std::string> result;
  for (const std::string& variable : own_environment()) {
    const std::string_view name = std::string_view(variable).substr(0, variable.find('='));
    // If this launcher was started by another one, some variables of that launcher are not passed on. Rank 0 itself
    // serves the store, and the other launcher's heartbeat memory is not for these ranks.
    const bool foreign = name == "TORCHELASTIC_USE_AGENT_STORE" || name == heartbeat::kVariable;
    if (!variables.contains(name) && !foreign) result.push_back(variable);
  }
  for (const auto& [name, value] : variables) result.push_back(name + "=" + value);
  return result;
}

}  // namespace zeroshard
