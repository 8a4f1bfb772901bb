#pragma once
#include <string>

namespace zeroshard {

// Returns this host's name from gethostname().
std::string host_name();

}  // namespace zeroshard
