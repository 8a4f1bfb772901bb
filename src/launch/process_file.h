#pragma once
#include <sys/types.h>

#include <string>

namespace zeroshard {

// Returns the contents of /proc/<pid>/<name>. Returns "" if the file cannot be read. This is no error, because a
// process can end at any moment, also between open and read.
std::string read_process_file(pid_t pid, const char* name);

}  // namespace zeroshard
