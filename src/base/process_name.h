#pragma once
#include <sys/types.h>

#include <string>
#include <string_view>

namespace zeroshard {

// "HOST.PID-PLACE-RANDOM": this process, among all that share a file system and all before it. In a restarted container
// a process has the host name and the number that its predecessor had. HOST has no dots. PLACE says which boot of the
// host and which namespace of process numbers it is in: containers of one host may have the same name and other
// processes.
std::string process_name();

// Whether `name`, of process_name(), is of a process of this host that is no more. False for what is no such name, and
// for another boot or namespace of a host of this name: whether a process lives there cannot be known.
bool has_ended(std::string_view name);
// Whether it is of a process of this host, or of one with the same name.
bool is_of_this_host(std::string_view name);
// Whether it is so, and of another boot or namespace.
bool is_of_another_place(std::string_view name);

// Whether there is a process, or a process group for a negative number, that has not been waited for.
bool process_exists(pid_t pid);

}  // namespace zeroshard
