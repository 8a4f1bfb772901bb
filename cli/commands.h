#pragma once
#include <vector>

#include "program.h"

namespace CLI {
class App;
}

// Declares the subcommands of `zeroshard`. Each function adds one subcommand to `app`, and is defined in a file of its
// own. The subcommand's callback does the work.
namespace zeroshard::cli {

void add_config_command(CLI::App& app);
void add_checkpoint_command(CLI::App& app);
void add_doctor_command(CLI::App& app);
void add_env_command(CLI::App& app);
void add_plan_command(CLI::App& app);
void add_run_command(CLI::App& app);
void add_tokenize_command(CLI::App& app);
void add_train_command(CLI::App& app);
void add_generate_command(CLI::App& app);

// Returns `arguments`, the command line, without a `--` before the script of `run`, because CLI11 would end the
// subcommand at that `--`.
std::vector<char*> without_separator(const CLI::App& app, std::vector<char*> arguments);

}  // namespace zeroshard::cli
