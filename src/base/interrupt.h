#pragma once

namespace zeroshard {

// A function by which the program interrupts a wait inside the library. Long waits call it about ten times a second,
// and an exception from it ends the wait. Any thread may call it. There is one check per process, as there is one set
// of signal handlers, because Python runs signal handlers only when it is asked to.
using InterruptCheck = void (*)();

void set_interrupt_check(InterruptCheck check) noexcept;
void check_interrupt();
// Returns whether this thread is inside the check. If so, a wait must not call the check again.
bool in_interrupt_check() noexcept;

// While an object lives, waits of its thread do not call the check. Threads that the library starts use it, because the
// program interrupts only its own thread, which waits for the library's thread.
class UninterruptedThread {
 public:
  UninterruptedThread() noexcept;
  ~UninterruptedThread();
  UninterruptedThread(const UninterruptedThread&) = delete;
  UninterruptedThread& operator=(const UninterruptedThread&) = delete;
};

}  // namespace zeroshard
