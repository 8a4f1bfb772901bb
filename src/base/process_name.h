#pragma once
#include <sys/types.h>

#include <string>
#include <string_view>

namespace zeroshard {

// Returns "HOST.PID-PLACE-RANDOM", a name that no other process has or had, among all processes that share a file
// system. HOST has no dots. PLACE identifies the boot of the host and the namespace of process numbers, because
// containers of one host can have the same host name. RANDOM is needed because a process in a restarted container has
// the host name and the process number of its predecessor.
std::string process_name();

// Returns whether `text` ends with "-RANDOM", as a name from process_name() does.
bool ends_as_process_name(std::string_view text);

// Returns whether `name`, from process_name(), names a process of this host that no longer exists (see
// process_exists()). Returns false for processes of another host, boot or namespace, because this process cannot see
// them. If a later process has the same number now, returns false, too, unless the later process is this one, which
// knows its own name.
bool has_ended(std::string_view name);
// Returns whether `name`, from process_name(), has this host's name as HOST.
bool is_of_this_host(std::string_view name);
// Returns whether `name` has this host's name as HOST, but the PLACE of another boot or namespace.
bool is_of_another_place(std::string_view name);

// Returns whether the process `pid` exists. A process that has ended exists until its parent has waited for it. A
// negative number means a process group.
bool process_exists(pid_t pid);

}  // namespace zeroshard
