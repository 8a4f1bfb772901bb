#pragma once
#include <cstdint>
#include <optional>
#include <string>

namespace zeroshard {

// The memory of this host, and the limits on what this process can use of it. Amounts are in bytes.
struct HostMemory {
  int64_t total = 0, available = 0;  // of the machine; 0: unknown; `available` includes page cache that can be freed
  // The lowest memory limit among this process's control groups, if it is below `total` or `total` is unknown.
  // `cgroup_used` is the memory that the group with this limit uses, without the inactive part of the page cache.
  std::optional<int64_t> cgroup_limit;
  int64_t cgroup_used = 0;
  uint64_t cgroup = 0;  // identifies that group: the inode of its folder, unique on the machine; 0: none or unknown
  std::optional<int64_t> address_limit;  // limit of the address space of each process (ulimit -v)

  // most() returns the largest amount that all processes together can have, which is cgroup_limit, or `total` if there
  // is no limit. free() returns how much of that amount is unused, but at most `available`.
  int64_t most() const;
  int64_t free() const;
};

// Reads /proc, /sys/fs/cgroup (version 1 or 2) and getrlimit(2). Tests pass a folder as `root`, which stands for "/".
HostMemory read_host_memory(const std::string& root = "");

// Returns a number that identifies the processes which share most(). These are all processes of a machine, or all
// processes in the control group whose limit counts and in the groups below it. These processes get the same number
// until the machine restarts, and others get another one. The number is not negative. 0 means that it is unknown.
int64_t number_of(const HostMemory& memory);

}  // namespace zeroshard
