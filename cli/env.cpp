// `zeroshard env`: prints environment variables for a shell. With these variables, `import deepspeed` imports
// zeroshard, and the command `deepspeed` is zeroshard's.
#include <CLI/CLI.hpp>
#include <iostream>

#include "commands.h"
#include "zeroshard/error.h"
#include "zeroshard/launch.h"

namespace zeroshard::cli {
namespace {

// Quotes `value` so that a POSIX shell reads it as one word.
std::string quoted(const std::string& value) {
  std::string word = "'";
  for (const char character : value) word += character == '\'' ? std::string("'\\''") : std::string(1, character);
  return word + "'";
}

void print() {
  const std::optional<SearchPaths> paths = paths_with_deepspeed();
  if (!paths) {
    throw Error(
        "the Python that runs scripts has no zeroshard: activate the environment that has it (VIRTUAL_ENV), or install "
        "it there");
  }
  std::cout << "export PYTHONPATH=" << quoted(paths->python_path) << "\nexport PATH=" << quoted(paths->path) << "\n";
}

}  // namespace

void add_env_command(CLI::App& app) {
  CLI::App* env = app.add_subcommand("env", "Prints exports by which `import deepspeed` and `deepspeed` are zeroshard");
  env->footer("In a shell: eval \"$(zeroshard env)\"");
  env->callback([] { print(); });
}

}  // namespace zeroshard::cli
