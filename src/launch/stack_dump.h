#pragma once
#include <memory>

#include "zeroshard/launch.h"

namespace zeroshard {

namespace heartbeat {
struct Slot;
}

// Installs a signal handler: from then on stack_dump_signal() prints the receiving thread's native stack to stderr,
// without malloc, and is counted in `slot`. Only a process's first call has an effect. The previous handler is called
// as well.
void install_stack_dump(const std::shared_ptr<heartbeat::Slot>& slot);

}  // namespace zeroshard
