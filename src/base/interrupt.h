#pragma once

namespace zeroshard {

// A function by which the program interrupts a wait inside the library. A long wait calls it about ten times a second,
// on the thread that waits, and an exception from it ends the wait. Python needs such calls, because it runs signal
// handlers only when it is asked to. A process has one check, as it has one set of signal handlers.
using InterruptCheck = void (*)();

void set_interrupt_check(InterruptCheck check) noexcept;
void check_interrupt();
// Returns whether check_interrupt() does nothing on this thread, because the check runs or an UninterruptedThread
// lives.
bool in_interrupt_check() noexcept;

// While an UninterruptedThread lives, check_interrupt() does nothing on the thread that made it. The thread of Tiers
// makes one, because the program's own thread waits for that thread and calls the check meanwhile. check_interrupt()
// makes one while the check runs, so that a wait inside the check does not call the check again. A thread must not have
// two of these objects at a time.
class UninterruptedThread {
 public:
  UninterruptedThread() noexcept;
  ~UninterruptedThread();
  UninterruptedThread(const UninterruptedThread&) = delete;
  UninterruptedThread& operator=(const UninterruptedThread&) = delete;
};

}  // namespace zeroshard
