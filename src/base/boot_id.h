#pragma once
#include <string>

namespace zeroshard {

// The same for all processes of a machine until it starts anew, and for no other machine. "": unknown.
std::string boot_id();

}  // namespace zeroshard
