#include "launch/descendants.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <filesystem>
#include <map>
#include <optional>
#include <string>

#include "launch/process_file.h"

namespace zeroshard {
namespace {

std::optional<pid_t> to_pid(const std::string& text) {
  pid_t pid = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, pid);
  if (error != std::errc{} || stop != end) return {};
  return pid;
}

// Returns the parent of a process, which is field 4 of /proc/<pid>/stat, or nothing if the process is gone. Looks for
// the last ") ", because field 2, the name in parentheses, can contain any characters.
std::optional<pid_t> parent_of(pid_t pid) {
  const std::string text = read_process_file(pid, "stat");
  const size_t end = text.rfind(") ");
  if (end == text.npos) return {};  // the process has just ended
  const size_t begin = end + 4;     // the position after ") S "
  return to_pid(text.substr(begin, text.find(' ', begin) - begin));
}

std::multimap<pid_t, pid_t> children_by_parent() {
  std::multimap<pid_t, pid_t> result;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", error)) {
    const auto pid = to_pid(entry.path().filename());
    const auto parent = pid ? parent_of(*pid) : std::nullopt;
    if (parent) result.emplace(*parent, *pid);
  }
  return result;
}

}  // namespace

std::vector<pid_t> descendants(pid_t root, const std::vector<pid_t>& except) {
  const auto by_parent = children_by_parent();
  std::vector<pid_t> found, parents{root};
  while (!parents.empty()) {
    const pid_t parent = parents.back();
    parents.pop_back();
    const auto [begin, end] = by_parent.equal_range(parent);
    for (auto it = begin; it != end; ++it) {
      if (std::find(except.begin(), except.end(), it->second) != except.end()) continue;
      found.push_back(it->second);
      parents.push_back(it->second);
    }
  }
  return found;
}

std::vector<pid_t> children(pid_t root) {
  const auto by_parent = children_by_parent();
  const auto [begin, end] = by_parent.equal_range(root);
  std::vector<pid_t> found;
  for (auto it = begin; it != end; ++it) found.push_back(it->second);
  return found;
}

std::string process_name(pid_t pid) {
  const std::string line = read_process_file(pid, "comm");
  return line.substr(0, line.find('\n'));
}

}  // namespace zeroshard
