#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "zeroshard/config.h"
#include "zeroshard/data.h"
#include "zeroshard/lora.h"
#include "zeroshard/tokenize.h"

// Trains the model of a Hugging Face directory. `zeroshard train` calls these functions.
namespace zeroshard {

class World;

// The object "train" of a configuration file (docs/train.md).
struct TrainOptions {
  std::string model;          // directory with config.json, and with weights if not from_scratch
  std::string output;         // directory for the trained model; must not contain a model of another run
  bool from_scratch = false;  // true: start from the architecture's own initialisation
  uint64_t seed = 0;          // seed of initialisation, of the order of the data, and of dropout
  int64_t steps = 0;          // 0 if `epochs` is given
  double epochs = 0;

  // Token files and text files. Names of text files end in .txt, .jsonl, .ndjson, .json or .parquet.
  std::vector<std::string> data, validation_data;
  TokenizeOptions text;              // options for text files in `data` and `validation_data`
  DatasetOptions rows;               // with validation_share > 0, this share of `data` is the validation data
  std::string export_dtype = "F32";  // dtype of the trained model: F32, BF16, F16

  int64_t checkpoint_every = 0;  // steps between checkpoints; 0: only at the end
  std::string checkpoints;       // directory; empty: output + "/checkpoints"

  int64_t evaluate_every = 0;   // steps between evaluations; 0: only at the end, if there is validation data
  int64_t evaluation_rows = 0;  // largest number of rows of an evaluation; 0: all
  int64_t patience = 0;         // the run ends after this many evaluations in a row without a better loss; 0: never

  int64_t recompute_every = 0;      // k: every k-th block has activation checkpointing; 0: no block has it
  std::vector<std::string> freeze;  // parameters whose names begin with one of these texts are not trained

  std::optional<LoraOptions> lora;  // if set, only adapters are trained
  std::string lora_adapter;         // directory of an adapter to continue from; empty: new adapters
  bool lora_merge = false;  // true: `output` gets the whole model with merged adapters; false: only the adapters

  // Texts that the run continues with the most likely tokens after each evaluation.
  std::vector<std::string> sample_prompts;
  int64_t sample_tokens = 40;

  int64_t log_every = 10;  // steps between lines of progress

  std::string device = "auto";  // name for choose_device(), used by the program; train() uses the device of the World
};

// The parsed text of a configuration file, which has DeepSpeed's keys and "train". If the total_num_steps of a schedule
// is "auto", parse_train_config() sets it to train.steps. If the file has train.epochs instead of train.steps, the
// number of steps depends on the data, so `schedule_ends_with_run` is true. parse_train_config() throws ConfigError
// with the JSON path of the error.
struct TrainConfig {
  TrainOptions train;
  ParsedConfig engine;
  bool schedule_ends_with_run = false;  // true: train() sets total_num_steps to the steps of the run
};
TrainConfig parse_train_config(const std::string& json, const ConfigContext& context, const std::string& source);

// A finished step of a run. The values are the same on every rank.
struct TrainStep {
  int64_t step = 0, total = 0;  // finished steps, including those before a resumed checkpoint; steps of the whole run
  double loss = 0;              // mean over the targets of the step; 0 without targets
  int64_t targets = 0;
  double grad_norm = 0, lr = 0;
  int64_t tokens = 0;  // tokens of the step, including padding
  bool applied = true;
};
struct Evaluation {
  int64_t step = 0;
  double loss = 0;  // mean over all targets; perplexity = exp(loss)
  int64_t targets = 0;
};
// Gets reports about a run. Each rank passes an observer of its own to train().
struct TrainObserver {
  virtual ~TrainObserver() = default;
  virtual void planned(const std::string& /*description*/) {}  // called first, on rank 0, with a text about the run
  // Called when training starts. A `step` above 0 means that the run resumes from a checkpoint of that step. If `step`
  // is not below `total`, there is nothing left to train.
  virtual void started(int64_t /*step*/, int64_t /*total*/) {}
  virtual void stepped(const TrainStep& /*step*/) {}
  virtual void evaluated(const Evaluation& /*evaluation*/) {}  // not called if no row has a target
  virtual void sampled(int64_t /*step*/, const std::string& /*text*/) {}
};

// The reason why a run ended: all steps are done, TrainOptions::patience ended the run, or a signal ended it.
enum class TrainEnd : uint8_t { kDone, kStoppedEarly, kInterrupted };

// Trains the model. Collective. Resumes from the newest checkpoint, if there is one. At the end the trained model is in
// TrainOptions::output, except after kInterrupted. When `stop` becomes true on any rank (a signal handler may set it),
// the run saves a checkpoint and ends, after its current step or in the middle of an evaluation. A run that still
// tokenizes texts at that time ends before TrainObserver::started(), and saves nothing. If training fails, throws Error
// on every rank.
TrainEnd train(const TrainConfig& config, World& world, TrainObserver& observer, const std::atomic<bool>& stop);

// Returns lines of text about the run that train() would make: the model, the data and its first row, the steps, and
// the memory. The text gives the memory that each of the `config.engine.config.world_size` ranks needs, and says
// whether it fits. With `on_device`, that is memory of the device and of the host, and otherwise only of the host.
// `ranks_of_host` ranks share this host's memory. Tokenizes texts into token files, and writes nothing else. Throws
// Error.
std::string describe_run(const TrainConfig& config, bool on_device = false, int ranks_of_host = 1);

}  // namespace zeroshard
