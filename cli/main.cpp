#include <CLI/CLI.hpp>

#include "commands.h"
#include "zeroshard/version.h"

int main(int argc, char** argv) {
  CLI::App app("zeroshard trains models that do not fit on one device", "zeroshard");
  app.set_version_flag("--version", std::string("zeroshard ") + zeroshard::kVersion);
  app.require_subcommand(1);
  for (const auto add : {ZS_CLI_COMMANDS}) add(app);
  const auto arguments = zeroshard::cli::without_separator(app, {argv, argv + argc});
  return zeroshard::cli::run_program(app, static_cast<int>(arguments.size()), arguments.data());
}
