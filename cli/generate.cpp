// `zeroshard generate`: text from the model of a Hugging Face directory, without Python.
#include <CLI/CLI.hpp>
#include <memory>

#include "commands.h"
#include "torch_program.h"
#include "zeroshard/launch.h"
#include "zeroshard/rank_environment.h"

namespace zeroshard::cli {

// The options are those of zeroshard-torch, which checks them.
void add_generate_command(CLI::App& app) {
  CLI::App* generate = app.add_subcommand("generate", "Text from the model of a Hugging Face directory");
  generate->prefix_command();
  generate->footer(
      "zeroshard generate [--nproc N] DIR --prompt TEXT [--max-tokens N] [--temperature T] [--top-k K] "
      "[--top-p P] [--seed S] [--dtype BF16]: see docs/generate.md.");
  auto nproc = std::make_shared<int>(1);
  generate->add_option("--nproc", *nproc, "Ranks that share the model's blocks (default: 1)")
      ->check(CLI::PositiveNumber);
  generate->callback([generate, nproc] {
    LaunchOptions options;
    options.argv = {torch_program(), "generate"};
    for (const std::string& argument : generate->remaining()) options.argv.push_back(argument);
    if (*nproc == 1 || !rank_environment().source.empty()) become(options.argv);
    options.nproc = *nproc;
    options.prefix_stdout = false;  // only rank 0 writes
    throw Exit{launch(options)};
  });
}

}  // namespace zeroshard::cli
