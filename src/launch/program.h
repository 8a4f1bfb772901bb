#pragma once
#include <string>

namespace zeroshard {

// Returns the Python that runs scripts: the one of VIRTUAL_ENV, otherwise the one in this executable's directory,
// otherwise the first in PATH. Throws ValueError if there is none.
std::string find_python();

// Returns the path of a program that is in PATH; "" if it is not.
std::string find_in_path(const std::string& name);

}  // namespace zeroshard
