#pragma once
#include <string>

namespace zeroshard {

// This host's name, as gethostname() has it.
std::string host_name();

}  // namespace zeroshard
