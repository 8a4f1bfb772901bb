#pragma once

namespace zeroshard {

// A function by which the program interrupts a wait inside the library. A long wait calls it at least about ten times a
// second, on the thread that waits. An exception from the function ends the wait. Python needs such calls, because it
// runs signal handlers only when it is asked to. A process has one such function for all its threads, because the
// process has one set of signal handlers, too.
using InterruptCheck = void (*)();

void set_interrupt_check(InterruptCheck check) noexcept;  // null removes the function
void check_interrupt();                                   // calls the InterruptCheck, if one is set
// Returns whether an UninterruptedThread of this thread lives, so that check_interrupt() does nothing on this thread.
// This is also true while the InterruptCheck runs.
bool in_interrupt_check() noexcept;

// While an UninterruptedThread lives, check_interrupt() does nothing on the thread that made the object. The thread of
// a Tiers (comm_c10d/tiers.h) makes one, because the program's own thread waits for that thread and calls
// check_interrupt() meanwhile. check_interrupt() makes one while the InterruptCheck runs, so that a wait inside the
// InterruptCheck does not call the InterruptCheck again. A thread must not have two of these objects at a time.
class UninterruptedThread {
 public:
  UninterruptedThread() noexcept;
  ~UninterruptedThread();
  UninterruptedThread(const UninterruptedThread&) = delete;
  UninterruptedThread& operator=(const UninterruptedThread&) = delete;
};

}  // namespace zeroshard
