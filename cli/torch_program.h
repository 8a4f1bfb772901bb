#pragma once
#include <string>
#include <vector>

namespace zeroshard::cli {

// Returns the path of the program zeroshard-torch, which is in the directory of this program. Throws Error if it is
// missing.
std::string torch_program();

// Replaces this program by the program of `argv`. Throws Error if that program cannot be started.
[[noreturn]] void become(const std::vector<std::string>& argv);

// Runs the program of `argv` with this program's input and output, and waits for its end. Returns the exit code of that
// program, or 128 + n if signal n ended it. Throws Error if that program cannot be started.
int run_to_end(const std::vector<std::string>& argv);

}  // namespace zeroshard::cli
