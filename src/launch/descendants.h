#pragma once
#include <sys/types.h>

#include <string>
#include <vector>

namespace zeroshard {

// Returns the descendants of `root` that /proc shows. Leaves out the processes in `except` and their descendants.
std::vector<pid_t> descendants(pid_t root, const std::vector<pid_t>& except = {});

// Returns the direct children of `root`.
std::vector<pid_t> children(pid_t root);

// Returns the name of a process as ps shows it, or "" if the process is gone.
std::string process_name(pid_t pid);

}  // namespace zeroshard
