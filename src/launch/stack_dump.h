#pragma once
#include <memory>

#include "zeroshard/launch.h"

namespace zeroshard {

namespace heartbeat {
struct Slot;
}

// From here on stack_dump_signal() prints the native stack of the thread that gets it to stderr, without malloc, and
// counts in `slot`. The first call of a process decides; a handler that was there before is called as well.
void install_stack_dump(const std::shared_ptr<heartbeat::Slot>& slot);

}  // namespace zeroshard
