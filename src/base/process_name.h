#pragma once
#include <sys/types.h>

#include <string>
#include <string_view>

namespace zeroshard {

// Returns "HOST.PID-PLACE-RANDOM", a name of this process that no other process has or had, among all that share a file
// system. RANDOM is needed because a process in a restarted container has the host name and the number of its
// predecessor. HOST has no dots. PLACE identifies the boot of the host and the namespace of process numbers, because
// different containers of one host may have the same name.
std::string process_name();

// Returns whether `text` ends like a name from process_name(): with "-RANDOM".
bool ends_as_process_name(std::string_view text);

// Returns whether `name`, from process_name(), names a process of this host that has ended. Returns false for other
// names, and for names of another boot or namespace, because this process cannot see such processes.
bool has_ended(std::string_view name);
// Returns whether `name`, from process_name(), has this host's name as HOST.
bool is_of_this_host(std::string_view name);
// Returns whether `name` has this host's name as HOST, but PLACE of another boot or namespace.
bool is_of_another_place(std::string_view name);

// Returns whether a process exists that has not been waited for. A negative number means a process group.
bool process_exists(pid_t pid);

}  // namespace zeroshard
