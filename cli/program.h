#pragma once

namespace CLI {
class App;
}

// How the programs of this folder and of cli_torch/ run a subcommand, and end.
//   wrong input:   throw zeroshard::ValueError or ConfigError; the message goes to stderr and the exit code is 2
//   other errors:  throw; exit code 1
//   another code:  throw Exit{code}
// Output of a successful command to std::cout is its result: if it cannot be written, that is an error.
namespace zeroshard::cli {

struct Exit {
  int code;
};

// Parses the command line, which runs its subcommand's callback. Returns the exit code.
int run_program(CLI::App& app, int argc, const char* const* argv);

}  // namespace zeroshard::cli
