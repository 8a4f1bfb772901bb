#pragma once
#include <memory>

#include "zeroshard/launch.h"

namespace zeroshard {

namespace heartbeat {
struct Slot;
}

// Installs a handler for the signal stack_dump_signal(). The handler prints to stderr, without malloc(), the native
// stack of the thread that gets the signal. Then it calls the previous handler, if there is one. Except in a forked
// child, it adds one to the `dumps` of `slot`. Only the first call in a process has an effect.
void install_stack_dump(const std::shared_ptr<heartbeat::Slot>& slot);

}  // namespace zeroshard
