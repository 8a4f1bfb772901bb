#pragma once

namespace CLI {
class App;
}

// The subcommands of `zeroshard-torch`, one per file.
namespace zeroshard::cli {

void add_generate_rank_command(CLI::App& app);
void add_train_rank_command(CLI::App& app);

}  // namespace zeroshard::cli
