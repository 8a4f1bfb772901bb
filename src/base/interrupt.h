#pragma once

namespace zeroshard {

// Lets the program end a wait of the library's: what waits long asks some ten times a second. Signals belong to a
// process and not to an object, and so does this: Python runs handlers of signals only where it is asked to.
// The check is called by any thread, and throws what is to end the wait.
using InterruptCheck = void (*)();

void set_interrupt_check(InterruptCheck check) noexcept;
void check_interrupt();
// Whether this thread is within the check: then what waits must not be called again.
bool in_interrupt_check() noexcept;

}  // namespace zeroshard
