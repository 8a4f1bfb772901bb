// `zeroshard train`: trains the model of a Hugging Face directory, without Python.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <memory>
#include <optional>

#include "commands.h"
#include "numbers.h"
#include "torch_program.h"
#include "zeroshard/error.h"
#include "zeroshard/launch.h"
#include "zeroshard/rank_environment.h"

namespace zeroshard::cli {
namespace {

struct TrainArguments {
  std::string config;
  std::optional<std::string> nproc, max_restarts;
  std::string log_dir;
  bool dry_run = false;
};

int run(const TrainArguments& arguments) {
  LaunchOptions options;
  options.argv = {torch_program(), "train", arguments.config};
  if (arguments.dry_run) options.argv.emplace_back("--dry-run");
  options.prefix_stdout = !arguments.dry_run;
  options.nproc = parse_int("--nproc", arguments.nproc, 1, 1);
  options.max_restarts = parse_int("--max-restarts", arguments.max_restarts, 0, 0);
  // Under torchrun, mpirun, srun or zeroshard run this process is a rank already.
  if (!rank_environment().source.empty()) become(options.argv);
  options.log_dir = arguments.log_dir;
  return launch(options);
}

}  // namespace

void add_train_command(CLI::App& app) {
  CLI::App* train = app.add_subcommand("train", "Trains the model of a Hugging Face directory, without Python");
  train->footer("CONFIG is a DeepSpeed configuration with an object \"train\": see docs/train.md.");
  auto arguments = std::make_shared<TrainArguments>();
  train->add_option("CONFIG", arguments->config, "A JSON file")->required();
  train->add_option("--nproc,--nproc_per_node", arguments->nproc, "Ranks on this host (default: 1)");
  train->add_option("--max-restarts", arguments->max_restarts,
                    "How often a run that fails goes on from its checkpoint");
  train->add_option("--log-dir", arguments->log_dir, "Folder for rank-N.log, all that each rank writes");
  train->add_flag("--dry-run", arguments->dry_run, "Only tell what would be done: model, data, steps, bytes of a rank");
  train->callback([arguments] { throw Exit{run(*arguments)}; });
}

}  // namespace zeroshard::cli
