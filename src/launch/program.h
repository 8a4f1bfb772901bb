#pragma once
#include <string>

namespace zeroshard {

// The Python that runs scripts: that of VIRTUAL_ENV, else the one beside this executable, else the first in PATH.
// Throws ValueError when there is none.
std::string find_python();

// The file of a program that PATH has; "" if none.
std::string find_in_path(const std::string& name);

}  // namespace zeroshard
