#pragma once

namespace CLI {
class App;
}

// The subcommands of `zeroshard-torch`, as those of cli/commands.h.
namespace zeroshard::cli {

struct Exit {
  int code;
};

void add_generate_rank_command(CLI::App& app);
void add_train_rank_command(CLI::App& app);

}  // namespace zeroshard::cli
