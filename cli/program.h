#pragma once

namespace CLI {
class App;
}

// Runs a subcommand of the programs in this folder and in cli_torch/. The subcommand's callback reports its end like
// this:
//   success:       write the result to std::cout and return; exit code 0, or 1 if the output could not be written
//   wrong input:   throw zeroshard::ValueError or ConfigError; the message goes to stderr and the exit code is 2
//   other errors:  throw; the message goes to stderr and the exit code is 1
//   another code:  throw Exit{code}; nobody checks the output then
namespace zeroshard::cli {

struct Exit {
  int code;
};

// Parses the command line. If that succeeds, CLI11 calls the callback of the subcommand that the user chose. Returns
// the exit code.
int run_program(CLI::App& app, int argc, const char* const* argv);

}  // namespace zeroshard::cli
