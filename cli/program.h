#pragma once

namespace CLI {
class App;
}

// Runs a subcommand of the programs in this folder and in cli_torch/. The callback reports its end like this:
//   wrong input:   throw zeroshard::ValueError or ConfigError; the message goes to stderr and the exit code is 2
//   other errors:  throw; exit code 1
//   another code:  throw Exit{code}
// A successful command writes its result to std::cout. If the result cannot be written, that is an error, too.
namespace zeroshard::cli {

struct Exit {
  int code;
};

// Parses the command line, which runs its subcommand's callback. Returns the exit code.
int run_program(CLI::App& app, int argc, const char* const* argv);

}  // namespace zeroshard::cli
