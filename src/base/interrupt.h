#pragma once

namespace zeroshard {

// Lets the program interrupt a wait inside the library: long waits call the check about ten times a second. The check
// belongs to the process and not to an object, like signals, because Python runs signal handlers only when it is asked
// to. Any thread may call the check. An exception from it ends the wait.
using InterruptCheck = void (*)();

void set_interrupt_check(InterruptCheck check) noexcept;
void check_interrupt();
// Returns whether this thread is inside the check. If so, a wait must not call the check again.
bool in_interrupt_check() noexcept;

}  // namespace zeroshard
