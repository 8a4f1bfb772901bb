// Runs one rank of `zeroshard train`.
#include <signal.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <iostream>
#include <memory>
#include <optional>

#include "../cli/program.h"
#include "base/format.h"
#include "base/log.h"
#include "base/read_text.h"
#include "commands.h"
#include "without_frames.h"
#include "zeroshard/error.h"
#include "zeroshard/metrics.h"
#include "zeroshard/rank_environment.h"
#include "zeroshard/train.h"
#include "zeroshard/world.h"

namespace zeroshard::cli {
namespace {

using Clock = std::chrono::steady_clock;

std::atomic<int> stop_signal = 0;  // the last signal that asked this rank to stop
std::atomic<bool> stop_requested = false;

void stop_at_signals() {
  struct sigaction action {};
  action.sa_handler = [](int signal) {
    stop_signal = signal;
    stop_requested = true;
  };
  action.sa_flags = SA_RESTART | SA_RESETHAND;  // the same signal again ends the process at once
  for (const int signal : {SIGTERM, SIGINT}) ::sigaction(signal, &action, nullptr);
}

// Writes rank 0's output, on the console and in the metric files.
class Reporter final : public TrainObserver {
 public:
  Reporter(const TrainOptions& options, std::string device) : options_(options), device_(std::move(device)) {}

  void planned(const std::string& description) override {
    std::cout << description << "device      " << device_ << std::endl;
  }

  void started(int64_t step, int64_t total) override {
    MetricsOptions metrics;
    metrics.directory = options_.output;
    metrics.total_steps = total;
    if (step > 0) metrics.resume_step = step;
    metrics_.emplace(metrics);
    ProgressOptions progress;
    progress.total_steps = total;
    progress.start_step = step;
    progress.every = options_.log_every;
    progress_.emplace(progress);
    progress_->message(beginning(step, total));
    last_ = Clock::now();
  }

  void stepped(const TrainStep& step) override {
    const auto now = Clock::now();
    const double seconds = std::chrono::duration<double>(now - last_).count();
    last_ = now;
    MetricValues values = {{"grad_norm", step.grad_norm},
                           {"lr", step.lr},
                           {"tokens_per_second", static_cast<double>(step.tokens) / seconds}};
    if (step.targets > 0) values.emplace(values.begin(), "loss", step.loss);
    if (step.targets == 0)
      progress_->message("step " + std::to_string(step.step) + " had no token to predict: it has no loss");
    if (!step.applied)
      progress_->message("step " + std::to_string(step.step) + " was skipped: a gradient was not finite");
    metrics_->record(step.step, values);
    progress_->update(step.step, values);
  }

  void evaluated(const Evaluation& evaluation) override {
    const double perplexity = std::exp(evaluation.loss);
    metrics_->record(evaluation.step, {{"validation_loss", evaluation.loss}, {"perplexity", perplexity}});
    char text[128];
    std::snprintf(text, sizeof text, "validation at step %lld: loss %.4f, perplexity %.4g, %lld targets",
                  static_cast<long long>(evaluation.step), evaluation.loss, perplexity,
                  static_cast<long long>(evaluation.targets));
    progress_->message(text);
    last_ = Clock::now();  // because the next step must not include the time of the evaluation
  }

  void sampled(int64_t, const std::string& text) override {
    progress_->message("sample: " + text);
    last_ = Clock::now();
  }

  void finish(TrainEnd end) {
    if (!progress_) {
      std::cout << "stopped by a signal before the first step\n";
      return;
    }
    progress_->finish();
    metrics_->finish();
    if (end == TrainEnd::kInterrupted) {
      std::cout << "stopped by a signal; a checkpoint is in " << options_.checkpoints
                << ": the same command goes on from it\n";
      return;
    }
    if (end == TrainEnd::kStoppedEarly)
      std::cout << "ended early: " << options_.patience << " evaluations without a better loss\n";
    const bool adapters_alone = options_.lora && !options_.lora_merge;
    std::cout << "the trained " << (adapters_alone ? "adapter" : "model") << " is in " << options_.output << "\n";
  }

 private:
  std::string beginning(int64_t step, int64_t total) const {
    if (step == 0) return "starts from the beginning";
    if (step < total) return concat("goes on from step ", step);
    if (step == total) return concat("step ", step, " of ", total, " is done already: nothing is left to train");
    return concat("the checkpoint in ", options_.checkpoints, " is of step ", step, ", which is beyond the ", total,
                  " steps of this run: nothing is left to train. Give more train.steps or train.epochs, or another ",
                  "train.checkpoints.folder");
  }

  const TrainOptions& options_;
  std::string device_;
  std::optional<RunMetrics> metrics_;
  std::optional<ProgressLine> progress_;
  Clock::time_point last_;
};

// Returns the exit code after a signal that stopped the run. Every rank returns the same code, even if only one rank
// got the signal. If ranks got different signals, SIGTERM counts. Collective, because no rank may end before all ranks
// have finished their output. A launcher ends the other ranks as soon as one rank has ended with such a code.
int exit_code_of_stop(World& world) {
  const bool terminated = world.mean(stop_signal == SIGTERM ? 1 : 0) > 0;
  const bool interrupted = world.mean(stop_signal == SIGINT ? 1 : 0) > 0;
  return 128 + (interrupted && !terminated ? SIGINT : SIGTERM);
}

TrainEnd train_with(const TrainConfig& config, World& world) {
  if (world.rank() != 0) {
    TrainObserver silent;
    return train(config, world, silent, stop_requested);
  }
  Reporter reporter(config.train, world.device().str());
  const TrainEnd end = train(config, world, reporter, stop_requested);
  reporter.finish(end);
  std::cout.flush();
  return end;
}

// Logs the keys of the configuration that are unknown or have no effect, and those whose "auto" became a value that can
// surprise the user.
void tell_of_keys(const ParsedConfig& parsed, const std::string& path) {
  if (!parsed.unknown.empty()) log(LogLevel::kWarning, concat(path, ": ", parsed.warning()));
  for (const std::string& line : parsed.assumed) log(LogLevel::kWarning, concat(path, ": ", line));
  for (const std::string& line : parsed.without_effect) log(LogLevel::kInfo, concat("no effect: ", line));
}

struct Arguments {
  std::string path;
  std::string device;  // replaces the device of the configuration if it is not empty
  int world_size = 0;  // set if `check` is true; otherwise the environment has the world size
  bool dry_run = false, check = false;
};

void train_rank(const Arguments& arguments) {
  const std::string& path = arguments.path;
  ConfigContext context;
  const RankEnvironment ranks = rank_environment();
  context.world_size = arguments.check ? arguments.world_size : ranks.world_size;
  if (!arguments.check) context.ranks_per_host = ranks.local_world_size;
  const TrainConfig config = parse_train_config(read_text(path), context, path);
  const c10::Device device = arguments.device.empty()
                                 ? choose_device(config.train.device, concat(path, ": train.device"))
                                 : choose_device(arguments.device, "--device");
  if (arguments.check) return;
  if (rank_environment().rank == 0) tell_of_keys(config.engine, path);
  if (arguments.dry_run) {
    without_frames([&] {
      if (rank_environment().rank == 0)
        std::cout << describe_run(config, !device.is_cpu(), std::max(1, rank_environment().local_world_size))
                  << "device      " << device.str() << "\n";
    });
    return;
  }
  stop_at_signals();
  World world(config.engine.config, device);
  try {
    TrainEnd end;
    without_frames([&] { end = train_with(config, world); });
    // Throws Exit, because after a normal return run_program() checks that the console output was written. Rank 0's
    // output is only a log, so a run that could not write it succeeds.
    throw Exit{end == TrainEnd::kInterrupted ? exit_code_of_stop(world) : 0};
  } catch (const std::exception& error) {
    world.abort(error.what());
    throw;
  }
}

}  // namespace

void add_train_rank_command(CLI::App& app) {
  CLI::App* train = app.add_subcommand("train", "One rank of a run");
  auto arguments = std::make_shared<Arguments>();
  train->add_option("CONFIG", arguments->path)->required();
  train->add_option("--device", arguments->device, "auto, cpu, cuda or cuda:N, instead of train.device");
  train->add_flag("--dry-run", arguments->dry_run, "Only tell what would be done");
  train->add_option("--check-for", arguments->world_size, "Only check the configuration, for that many ranks")
      ->each([arguments](const std::string&) { arguments->check = true; });
  train->callback([arguments] { train_rank(*arguments); });
}

}  // namespace zeroshard::cli
