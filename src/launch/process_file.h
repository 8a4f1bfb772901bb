#pragma once
#include <sys/types.h>

#include <string>

namespace zeroshard {

// /proc/<pid>/<name>; empty when it cannot be read: the process may end at any moment, also between open and read.
std::string read_process_file(pid_t pid, const char* name);

}  // namespace zeroshard
