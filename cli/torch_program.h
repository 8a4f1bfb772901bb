#pragma once
#include <string>
#include <vector>

namespace zeroshard::cli {

// The path of zeroshard-torch, which lies beside this program. Throws Error where it is missing.
std::string torch_program();

// Runs `argv` in place of this program. Throws Error when it cannot be started.
[[noreturn]] void become(const std::vector<std::string>& argv);

}  // namespace zeroshard::cli
