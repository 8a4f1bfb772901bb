#pragma once
#include <cstdint>
#include <optional>
#include <string>

namespace zeroshard {

// The memory of this host in bytes, as far as this process may use it.
struct HostMemory {
  int64_t total = 0, available = 0;  // bytes of the machine; 0: unknown. Page cache counts as available
  // The lowest memory limit among this process's control groups, and the memory that this group uses, without page
  // cache.
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

// Returns a number that identifies the processes which share most(): all processes of a machine, or all processes below
// the control group that limits them. The number is equal for exactly these processes until the machine restarts. It is
// not negative; 0 means unknown.
int64_t number_of(const HostMemory& memory);

}  // namespace zeroshard
