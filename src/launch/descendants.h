#pragma once
#include <sys/types.h>

#include <string>
#include <vector>

namespace zeroshard {

// The descendants of `root`, from /proc, without those in `except` and their descendants.
std::vector<pid_t> descendants(pid_t root, const std::vector<pid_t>& except = {});

// The direct children of `root`.
std::vector<pid_t> children(pid_t root);

// The name of a process as ps shows it; empty when it is gone.
std::string process_name(pid_t pid);

}  // namespace zeroshard
