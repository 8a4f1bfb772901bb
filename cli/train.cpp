// `zeroshard train`: trains the model of a Hugging Face directory, without Python.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <memory>

#include "commands.h"
#include "numbers.h"
#include "supervisor_options.h"
#include "torch_program.h"
#include "zeroshard/error.h"
#include "zeroshard/launch.h"
#include "zeroshard/rank_environment.h"

namespace zeroshard::cli {
namespace {

struct TrainArguments {
  std::string config, device;
  LaunchOptions launch;  // set by --nproc and the options of add_supervisor_options()
  bool dry_run = false;
};

// Starts one process that checks the configuration for `world_size` ranks, so that the user sees an error once, and not
// once from each rank. Throws Exit if the check fails.
void check_config(std::vector<std::string> argv, int world_size) {
  argv.insert(argv.end(), {"--check-for", std::to_string(world_size)});
  if (const int code = run_to_end(argv); code != 0) throw Exit{code};
}

int run(const TrainArguments& arguments) {
  LaunchOptions options = arguments.launch;
  options.argv = {torch_program(), "train", arguments.config};
  if (!arguments.device.empty()) options.argv.insert(options.argv.end(), {"--device", arguments.device});
  if (rank_environment().source.empty()) {
    check_launch_options(options);
    check_config(options.argv, options.nproc * options.nnodes);
  }
  if (arguments.dry_run) options.argv.emplace_back("--dry-run");
  options.prefix_stdout = !arguments.dry_run;
  // If torchrun, mpirun, srun or `zeroshard run` started this process, it is already a rank, and must not start others.
  if (!rank_environment().source.empty()) become(options.argv);
  return launch(options);
}

}  // namespace

void add_train_command(CLI::App& app) {
  CLI::App* train = app.add_subcommand("train", "Trains the model of a Hugging Face directory, without Python");
  train->footer(
      "CONFIG is a DeepSpeed configuration with an object \"train\". The smallest:\n"
      "  {\"train_batch_size\": 8, \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 1e-4}},\n"
      "   \"train\": {\"model\": \"llama\", \"output\": \"trained\", \"steps\": 1000,\n"
      "             \"data\": {\"train\": [\"corpus.txt\"], \"length\": 1024}}}\n"
      "`zeroshard config keys` lists DeepSpeed's keys. A wrong key under \"train\" is answered with those it has.");
  auto arguments = std::make_shared<TrainArguments>();
  LaunchOptions& launch = arguments->launch;
  train->add_option("CONFIG", arguments->config, "A JSON file")->required();
  add_int(*train, "--nproc,--nproc_per_node,--nproc-per-node", kRanksPerHost, launch.nproc,
          "Ranks on this host (default: 1)");
  add_supervisor_options(*train, launch);
  train->add_option("--device", arguments->device,
                    "auto, cpu, cuda or cuda:N, instead of the configuration's train.device");
  train->add_flag("--dry-run", arguments->dry_run, "Only tell what would be done: model, data, steps, bytes of a rank");
  train->callback([arguments] { throw Exit{run(*arguments)}; });
}

}  // namespace zeroshard::cli
