#pragma once
#include <memory>

namespace zeroshard {

namespace heartbeat {
struct Slot;
}

// The real-time signal that asks a rank for its stack. Python code may register its faulthandler on it too, with
// chain=True: whichever came first is called by the other.
int stack_dump_signal();

// From here on that signal prints the native stack of the thread that gets it to stderr, without malloc, and counts in
// `slot`. The first call of a process decides; a handler that was there before is called as well.
void install_stack_dump(const std::shared_ptr<heartbeat::Slot>& slot);

}  // namespace zeroshard
