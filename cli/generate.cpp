// `zeroshard generate`: text from the model of a Hugging Face directory, without Python.
#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <vector>

#include "commands.h"
#include "numbers.h"
#include "torch_program.h"
#include "zeroshard/error.h"
#include "zeroshard/launch.h"
#include "zeroshard/rank_environment.h"

namespace zeroshard::cli {
namespace {

// Removes --nproc from the remaining command line, which CLI11 does not parse. The last one counts.
void take_nproc(std::vector<std::string>& arguments, int& nproc) {
  for (size_t i = 0; i < arguments.size();) {
    const std::string& argument = arguments[i];
    const bool joined = argument.starts_with("--nproc=");
    if (!joined && argument != "--nproc") {
      ++i;
      continue;
    }
    const size_t taken = joined ? 1 : 2;
    const bool missing = i + taken > arguments.size();
    const std::string value = joined ? argument.substr(sizeof "--nproc=" - 1) : missing ? "" : arguments[i + 1];
    nproc = parse_int("--nproc", value, kRanksPerHost);
    arguments.erase(arguments.begin() + long(i), arguments.begin() + long(i + taken));
  }
}

}  // namespace

// zeroshard-torch has the other options and checks them.
void add_generate_command(CLI::App& app) {
  CLI::App* generate = app.add_subcommand("generate", "Text from the model of a Hugging Face directory");
  generate->prefix_command();
  generate->footer(
      "zeroshard generate DIR --prompt TEXT [--nproc N] [--max-tokens N] [--temperature T] [--top-k K] "
      "[--top-p P] [--seed S] [--dtype BF16] [--device D]: see docs/generate.md.");
  auto nproc = std::make_shared<int>(1);
  add_int(*generate, "--nproc", kRanksPerHost, *nproc, "Ranks that share the model's blocks (default: 1)");
  generate->callback([generate, nproc] {
    std::vector<std::string> arguments = generate->remaining();
    take_nproc(arguments, *nproc);
    LaunchOptions options;
    options.argv = {torch_program(), "generate"};
    options.argv.insert(options.argv.end(), arguments.begin(), arguments.end());
    if (*nproc == 1 || !rank_environment().source.empty()) become(options.argv);
    options.nproc = *nproc;
    options.prefix_stdout = false;  // only rank 0 writes
    throw Exit{launch(options)};
  });
}

}  // namespace zeroshard::cli
