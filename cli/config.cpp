// `zeroshard config`: what a configuration file means.
#include <CLI/CLI.hpp>

#include "commands.h"

namespace zeroshard::cli {

void add_config_command(CLI::App& app) {
  CLI::App* config = app.add_subcommand("config", "Explains configuration files");
  config->require_subcommand(1);
}

}  // namespace zeroshard::cli
