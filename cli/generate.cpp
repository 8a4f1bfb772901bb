// `zeroshard generate`: writes text with the model of a Hugging Face directory, without Python.
#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <vector>

#include "commands.h"
#include "generate_options.h"
#include "numbers.h"
#include "torch_program.h"
#include "zeroshard/launch.h"
#include "zeroshard/rank_environment.h"

namespace zeroshard::cli {
namespace {

struct RanksArguments {
  GenerateArguments of_rank;
  int nproc = 1;
};

// Returns the command line of a rank: the words that this command got, except --nproc.
std::vector<std::string> rank_argv(const CLI::App& command, const std::string& directory) {
  std::vector<std::string> argv = {torch_program(), "generate"};
  for (const CLI::Option* option : command.get_options()) {
    const std::string name = option->get_name();
    if (name == "DIR" || name == "--nproc") continue;
    for (const std::string& value : option->results()) {
      if (value.starts_with('-'))  // as a word of its own, the value would be read as an option
        argv.push_back(name + "=" + value);
      else
        argv.insert(argv.end(), {name, value});  // an empty value in NAME=VALUE would be read as a missing value
    }
  }
  argv.insert(argv.end(), {"--", directory});
  return argv;
}

}  // namespace

void add_generate_command(CLI::App& app) {
  CLI::App* generate = app.add_subcommand("generate", "Text from the model of a Hugging Face directory");
  auto arguments = std::make_shared<RanksArguments>();
  add_generate_options(*generate, arguments->of_rank);
  add_int(*generate, "--nproc", kRanksPerHost, arguments->nproc, "Ranks that share the model's blocks (default: 1)");
  generate->footer("zeroshard generate trained --prompt \"Once upon a time\" --max-tokens 50");
  generate->callback([generate, arguments] {
    check_model_directory(arguments->of_rank.directory);
    LaunchOptions options;
    options.argv = rank_argv(*generate, arguments->of_rank.directory);
    if (arguments->nproc == 1 || !rank_environment().source.empty()) become(options.argv);
    options.nproc = arguments->nproc;
    options.prefix_stdout = false;  // because only rank 0 writes
    throw Exit{launch(options)};
  });
}

}  // namespace zeroshard::cli
