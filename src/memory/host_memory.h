#pragma once
#include <cstdint>
#include <optional>
#include <string>

namespace zeroshard {

// The memory of this host, in bytes, as far as this process may use it.
struct HostMemory {
  int64_t total = 0, available = 0;  // of the machine; 0: unknown. Page cache counts as available
  // The lowest limit among this process's control groups, and what is used of that one but for page cache.
  std::optional<int64_t> cgroup_limit;
  int64_t cgroup_used = 0;
  uint64_t cgroup = 0;                   // that group: the inode of its folder, which no other of the machine has
  std::optional<int64_t> address_limit;  // of each process (ulimit -v)

  // What all processes together can have at most, and what is free of it.
  int64_t most() const;
  int64_t free() const;
};

// From /proc, /sys/fs/cgroup (version 1 or 2) and getrlimit. `root`: a folder that stands for "/", for tests.
HostMemory read_host_memory(const std::string& root = "");

// The same for all processes that share most(), until the machine starts anew, and for no others: those of a machine,
// or those below the control group that limits them. Not negative. 0: unknown.
int64_t number_of(const HostMemory& memory);

}  // namespace zeroshard
