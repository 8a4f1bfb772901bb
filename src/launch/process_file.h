#pragma once
#include <sys/types.h>

#include <string>

namespace zeroshard {

// Returns the contents of /proc/<pid>/<name>; empty if it cannot be read, because a process may end at any moment, also
// between open and read.
std::string read_process_file(pid_t pid, const char* name);

}  // namespace zeroshard
