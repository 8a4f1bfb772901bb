#pragma once
#include <sys/types.h>

#include <string>
#include <string_view>

namespace zeroshard {

// "HOST.PID-PLACE-RANDOM": this process, unique among all that share a file system and all earlier ones. In a
// restarted container a process has the host name and the number that its predecessor had. HOST has no dots. PLACE
// identifies the boot of the host and the namespace of process numbers: different containers of one host may have the
// same name.
std::string process_name();

// Whether `text` ends as a name from process_name() does: with "-RANDOM".
bool ends_as_process_name(std::string_view text);

// Whether `name`, from process_name(), names a process of this host that has ended. False for other names, and for
// another boot or namespace of a host with this name: whether such a process lives cannot be known.
bool has_ended(std::string_view name);
// Whether the process is on this host, or on one with the same name.
bool is_of_this_host(std::string_view name);
// The same, but in another boot or namespace.
bool is_of_another_place(std::string_view name);

// Whether a process (for a negative number, a process group) exists that has not been waited for.
bool process_exists(pid_t pid);

}  // namespace zeroshard
