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

// While it lives, waits of this thread do not call the check. It is for a thread that the program does not know: the
// program interrupts the thread that waits for it.
class UninterruptedThread {
 public:
  UninterruptedThread() noexcept;
  ~UninterruptedThread();
  UninterruptedThread(const UninterruptedThread&) = delete;
  UninterruptedThread& operator=(const UninterruptedThread&) = delete;
};

}  // namespace zeroshard
