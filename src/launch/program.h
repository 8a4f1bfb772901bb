#pragma once
#include <string>

namespace zeroshard {

// Returns the path of the Python that runs scripts. Looks for Python in VIRTUAL_ENV, then in this executable's
// directory, then in PATH. Throws ValueError if there is none.
std::string find_python();

// Returns the path at which PATH has the program `name`. Returns "" if PATH does not have it.
std::string find_in_path(const std::string& name);

}  // namespace zeroshard
