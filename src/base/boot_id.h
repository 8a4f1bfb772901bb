#pragma once
#include <string>

namespace zeroshard {

// Returns an id that all processes of a machine share until the machine restarts, and that no other machine has.
// Returns "" if the id is unknown.
std::string boot_id();

}  // namespace zeroshard
