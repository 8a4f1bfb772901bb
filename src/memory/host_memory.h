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
  std::optional<int64_t> address_limit;  // of each process (ulimit -v)

  // What all processes together can have at most, and what is free of it.
  int64_t most() const;
  int64_t free() const;
};

// From /proc, /sys/fs/cgroup (version 1 or 2) and getrlimit. `root`: a folder that stands for "/", for tests.
HostMemory read_host_memory(const std::string& root = "");

// The same for all processes of a machine until it starts anew, and for no other machine: not negative. 0: unknown.
int64_t machine_number();

}  // namespace zeroshard
