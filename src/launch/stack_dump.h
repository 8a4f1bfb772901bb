#pragma once
#include <memory>

#include "zeroshard/launch.h"

namespace zeroshard {

namespace heartbeat {
struct Slot;
}

// From here on stack_dump_signal() prints the receiving thread's native stack to stderr, without malloc, and counts in
// `slot`. Only a process's first call has an effect. An earlier handler is called as well.
void install_stack_dump(const std::shared_ptr<heartbeat::Slot>& slot);

}  // namespace zeroshard
