#pragma once
#include <sys/types.h>

#include <string>

namespace zeroshard {

// What the kernel says about the first thread of a process: "S (sleeping) in futex_do_wait, system call futex".
std::string kernel_state(pid_t pid);

// True when the process has a handler for `signal`, which would end it otherwise.
bool handles_signal(pid_t pid, int signal);

}  // namespace zeroshard
