// `zeroshard-torch`: the commands of `zeroshard` that need LibTorch, as one rank. `zeroshard` starts it, so that its
// other commands need not wait for LibTorch's libraries to be loaded.
#include <CLI/CLI.hpp>

#include "../cli/program.h"
#include "commands.h"

int main(int argc, char** argv) {
  CLI::App app("one rank of zeroshard train, or generate", "zeroshard-torch");
  app.require_subcommand(1);
  for (const auto add : {zeroshard::cli::add_train_rank_command, zeroshard::cli::add_generate_rank_command}) add(app);
  return zeroshard::cli::run_program(app, argc, argv);
}
