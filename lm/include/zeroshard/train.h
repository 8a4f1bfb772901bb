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
  std::string model;          // directory with config.json, and with weights unless from_scratch
  std::string output;         // directory for the trained model; refused if it holds another model
  bool from_scratch = false;  // starts from the architecture's own initialisation
  uint64_t seed = 0;          // seed of initialisation, of the order of the data, and of dropout
  int64_t steps = 0;          // either steps or epochs is given
  double epochs = 0;

  // Token files, or text files: names that end in .txt, .jsonl, .ndjson, .json or .parquet.
  std::vector<std::string> data, validation_data;
  TokenizeOptions text;              // options for text files
  DatasetOptions rows;               // validation_share > 0: this share of `data` is the validation data
  std::string export_dtype = "F32";  // dtype of the trained model: F32, BF16, F16

  int64_t checkpoint_every = 0;  // number of steps; 0: only at the end
  std::string checkpoints;       // directory; empty: output + "/checkpoints"

  int64_t evaluate_every = 0;   // number of steps; 0: only at the end, if there is validation data
  int64_t evaluation_rows = 0;  // largest number of rows of an evaluation; 0: all
  int64_t patience = 0;         // the run ends after this many evaluations in a row without a better loss; 0: never

  int64_t recompute_every = 0;      // activation checkpointing of every k-th block; 1: all blocks; 0: none
  std::vector<std::string> freeze;  // parameters whose names begin with one of these texts are not trained

  std::optional<LoraOptions> lora;  // if set, only adapters are trained
  std::string lora_adapter;         // directory of an adapter to continue from; empty: new adapters
  bool lora_merge = false;  // true: `output` gets the whole model with merged adapters; false: only the adapters

  // Texts that are continued with the most likely tokens after each evaluation.
  std::vector<std::string> sample_prompts;
  int64_t sample_tokens = 40;

  int64_t log_every = 10;  // number of steps

  std::string device = "auto";  // name for choose_device(), used by the program; train() uses the device of the World
};

// The parsed text of a configuration file: DeepSpeed's keys, and "train". Parsing throws ConfigError with the JSON path
// of the error.
struct TrainConfig {
  TrainOptions train;
  ParsedConfig engine;
  bool schedule_ends_with_run = false;  // total_num_steps is "auto", so train() counts the steps of the epochs
};
TrainConfig parse_train_config(const std::string& json, const ConfigContext& context, const std::string& source);

// The progress of a run. It is the same on every rank.
struct TrainStep {
  int64_t step = 0, total = 0;  // finished steps, also before a checkpoint; steps of the whole run
  double loss = 0;              // mean over the targets of the step's rows; 0 without targets
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
struct TrainObserver {
  virtual ~TrainObserver() = default;
  virtual void planned(const std::string& /*description*/) {}  // called first, on rank 0, with a description of the run
  // Called when training starts. A step above 0 says that the run resumes from a checkpoint; it equals `total` if the
  // run had already ended.
  virtual void started(int64_t /*step*/, int64_t /*total*/) {}
  virtual void stepped(const TrainStep& /*step*/) {}
  virtual void evaluated(const Evaluation& /*evaluation*/) {}  // not called if no row has a target
  virtual void sampled(int64_t /*step*/, const std::string& /*text*/) {}
};

enum class TrainEnd : uint8_t { kDone, kStoppedEarly, kInterrupted };

// Trains the model. Collective. Resumes from the newest checkpoint, if there is one. At the end the trained model is in
// `output`. When `stop` becomes true on any rank (a signal handler may set it), the run saves a checkpoint and ends,
// after its current step or within an evaluation. A run that is still tokenizing texts ends at once, before
// TrainObserver::started(). Throws Error on every rank.
TrainEnd train(const TrainConfig& config, World& world, TrainObserver& observer, const std::atomic<bool>& stop);

// Describes in lines of text the run that train() would make: model, data and its first row, steps, and memory. The
// memory is that of each of the `config.engine.config.world_size` ranks, with a verdict whether it fits. With
// `on_device`, it is the device's memory and host memory. `ranks_of_host` ranks share this host's memory. The function
// tokenizes texts into token files, and writes nothing else. Throws Error.
std::string describe_run(const TrainConfig& config, bool on_device = false, int ranks_of_host = 1);

}  // namespace zeroshard
