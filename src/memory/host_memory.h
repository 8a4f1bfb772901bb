#pragma once
#include <cstdint>
#include <optional>
#include <string>

namespace zeroshard {

// The memory of this host in bytes, as far as this process may use it.
struct HostMemory {
  int64_t total = 0, available = 0;  // bytes of the machine; 0: unknown. Page cache counts as available
  // The lowest limit among this process's control groups, and the used memory of that group without page cache.
  std::optional<int64_t> cgroup_limit;
  int64_t cgroup_used = 0;
  uint64_t cgroup = 0;  // identifies that group: the inode of its folder, which is unique on the machine
  std::optional<int64_t> address_limit;  // limit of each process (ulimit -v)

  // most() is the largest amount that all processes together can have, and free() is the unused part of it.
  int64_t most() const;
  int64_t free() const;
};

// Reads /proc, /sys/fs/cgroup (version 1 or 2) and getrlimit. Tests pass a folder that stands for "/" as `root`.
HostMemory read_host_memory(const std::string& root = "");

// Returns a number that is equal for all processes that share most(), until the machine restarts, and for no others:
// for all processes of a machine, or for those below the control group that limits them. Not negative. 0: unknown.
int64_t number_of(const HostMemory& memory);

}  // namespace zeroshard
