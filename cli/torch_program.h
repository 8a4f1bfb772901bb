#pragma once
#include <string>
#include <vector>

namespace zeroshard::cli {

// The path of zeroshard-torch, in the directory of this program. Throws Error if it is missing.
std::string torch_program();

// Replaces this program by `argv`. Throws Error when it cannot be started.
[[noreturn]] void become(const std::vector<std::string>& argv);

// Runs `argv` with this program's input and output. Returns its exit code, 128 + n after signal n. Throws Error when it
// cannot be started.
int run_to_end(const std::vector<std::string>& argv);

}  // namespace zeroshard::cli
