#pragma once
#include <sys/types.h>

#include <string>
#include <string_view>

namespace zeroshard {

// "HOST.PID-RANDOM": this process, among all that share a file system and all before it. In a restarted container a
// process has the host name and the number that its predecessor had. HOST has no dots.
std::string process_name();

// Whether `name`, of process_name(), is of a process of this host that is no more. False for what is no such name.
bool has_ended(std::string_view name);

// Whether there is a process, or a process group for a negative number, that has not been waited for.
bool process_exists(pid_t pid);

}  // namespace zeroshard
