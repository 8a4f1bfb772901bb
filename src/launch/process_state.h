#pragma once
#include <sys/types.h>

#include <string>

namespace zeroshard {

// Returns what the kernel says about the first thread of a process, for example "S (sleeping) in futex_do_wait, system
// call futex". Returns "gone" if there is no such process.
std::string kernel_state(pid_t pid);

// Returns whether the process exists and has a handler for `signal`. Without a handler, a signal such as
// stack_dump_signal() would end the process.
bool handles_signal(pid_t pid, int signal);

}  // namespace zeroshard
