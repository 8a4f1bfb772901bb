#include "memory/host_memory.h"

#include <sys/resource.h>
#include <sys/stat.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <functional>
#include <limits>
#include <sstream>

#include "base/boot_id.h"
#include "base/format.h"

namespace zeroshard {
namespace {

std::string text_of(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  if (file) text << file.rdbuf();
  return text.str();
}

std::optional<int64_t> number_in(std::string_view text) {
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc{} ? std::optional(number) : std::nullopt;
}

// Returns the number in the line that begins with `name` and a space or a colon.
std::optional<int64_t> field(const std::string& text, const std::string& name) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with(name) || line.size() <= name.size()) continue;
    if (line[name.size()] != ':' && line[name.size()] != ' ') continue;
    const size_t digits = line.find_first_of("0123456789", name.size());
    if (digits != line.npos) return number_in(std::string_view(line).substr(digits));
  }
  return std::nullopt;
}

struct CgroupFiles {
  std::string folder, limit, used, cache;
};

// Returns the names of the files for control groups of version 1 if the controller "memory" has a line in
// /proc/self/cgroup. Otherwise returns those of version 2, whose line names no controller. Returns nothing if there is
// neither line. Sets `path` to the path of this process's control group.
std::optional<CgroupFiles> find_cgroup(const std::string& root, std::string& path) {
  std::istringstream lines(text_of(root + "/proc/self/cgroup"));
  std::optional<CgroupFiles> found;
  for (std::string line; std::getline(lines, line);) {
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == line.npos || second == line.npos) continue;
    const std::string controllers = concat(",", line.substr(first + 1, second - first - 1), ",");
    if (controllers.find(",memory,") != controllers.npos) {
      path = line.substr(second + 1);
      return CgroupFiles{root + "/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes",
                         "total_inactive_file"};
    }
    if (controllers == ",," && !found) {
      path = line.substr(second + 1);
      found = CgroupFiles{root + "/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"};
    }
  }
  return found;
}

// Finds the lowest limit among the control group of this process and the groups above it. In a container, `path` can be
// the path on the host, although the container sees its own group as the root folder. The folders below the root are
// then missing, which counts as no limit.
void read_cgroups(const std::string& root, HostMemory& memory) {
  std::string path;
  const std::optional<CgroupFiles> files = find_cgroup(root, path);
  if (!files) return;
  for (;; path.resize(path.rfind('/'))) {
    while (path.ends_with('/')) path.pop_back();
    const std::string folder = concat(files->folder, path, "/");
    // `limit` is unset if the file is missing or contains "max", which means no limit.
    const std::optional<int64_t> limit = number_in(text_of(folder + files->limit));
    const bool counts = limit && (memory.total == 0 || *limit < memory.total);
    if (counts && *limit < memory.cgroup_limit.value_or(std::numeric_limits<int64_t>::max())) {
      memory.cgroup_limit = limit;
      struct stat status {};
      memory.cgroup = ::stat(folder.c_str(), &status) == 0 ? uint64_t(status.st_ino) : 0;
      memory.cgroup_used = number_in(text_of(folder + files->used)).value_or(0) -
                           field(text_of(folder + "memory.stat"), files->cache).value_or(0);
    }
    if (path.find('/') == path.npos) return;
  }
}

}  // namespace

int64_t HostMemory::most() const {
  return cgroup_limit ? *cgroup_limit : total;
}

int64_t HostMemory::free() const {
  return cgroup_limit ? std::min(available, std::max<int64_t>(0, *cgroup_limit - cgroup_used)) : available;
}

HostMemory read_host_memory(const std::string& root) {
  HostMemory memory;
  const std::string meminfo = text_of(root + "/proc/meminfo");
  memory.total = field(meminfo, "MemTotal").value_or(0) * 1024;
  memory.available = field(meminfo, "MemAvailable").value_or(memory.total / 1024) * 1024;
  read_cgroups(root, memory);
  rlimit limit{};
  if (::getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY)
    memory.address_limit = int64_t(std::min<rlim_t>(limit.rlim_cur, std::numeric_limits<int64_t>::max()));
  return memory;
}

int64_t number_of(const HostMemory& memory) {
  const std::string boot = boot_id();
  return boot.empty() ? 0 : int64_t(std::hash<std::string>()(concat(boot, " ", memory.cgroup)) >> 1);
}

}  // namespace zeroshard
