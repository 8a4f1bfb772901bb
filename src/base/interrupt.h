#pragma once

namespace zeroshard {

// Lets the program interrupt a wait inside the library: long waits call the check some ten times a second. It belongs
// to the process and not to an object, like signals: Python runs signal handlers only where it is asked to. Any thread
// may call the check; an exception from it ends the wait.
using InterruptCheck = void (*)();

void set_interrupt_check(InterruptCheck check) noexcept;
void check_interrupt();
// Whether this thread is inside the check: then a wait must not call it again.
bool in_interrupt_check() noexcept;

}  // namespace zeroshard
