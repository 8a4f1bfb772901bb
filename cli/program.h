#pragma once

namespace CLI {
class App;
}

// Runs a subcommand of the programs in this folder and in cli_torch/. The subcommand's callback reports its end like
// this:
//   wrong input:   throw zeroshard::ValueError or ConfigError; the message goes to stderr and the exit code is 2
//   other errors:  throw; exit code 1
//   another code:  throw Exit{code}
// A successful command writes its result to std::cout. If that fails, the command fails with an error, too.
namespace zeroshard::cli {

struct Exit {
  int code;
};

// Parses the command line. If that succeeds, CLI11 calls the callback of the subcommand that the user chose. Returns
// the exit code.
int run_program(CLI::App& app, int argc, const char* const* argv);

}  // namespace zeroshard::cli
