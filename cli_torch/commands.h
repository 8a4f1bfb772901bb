#pragma once

namespace CLI {
class App;
}

// Declares the subcommands of `zeroshard-torch`. Each function adds one subcommand to `app`, and is defined in a file
// of its own.
namespace zeroshard::cli {

void add_generate_rank_command(CLI::App& app);
void add_train_rank_command(CLI::App& app);

}  // namespace zeroshard::cli
