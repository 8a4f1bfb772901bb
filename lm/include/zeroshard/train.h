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

// Trains the model of a Hugging Face directory: the functions behind `zeroshard train`.
namespace zeroshard {

class World;

// The object "train" of a configuration file (docs/train.md).
struct TrainOptions {
  std::string model;          // directory with config.json, and weights unless from_scratch
  std::string output;         // directory for the trained model; refused if it holds another model
  bool from_scratch = false;  // with the architecture's own initialisation
  uint64_t seed = 0;          // of initialisation, the order of the data, dropout
  int64_t steps = 0;          // either this or the next is given
  double epochs = 0;

  // Token files, or text files: names that end in .txt, .jsonl, .ndjson, .json or .parquet.
  std::vector<std::string> data, validation_data;
  TokenizeOptions text;              // how text becomes tokens
  DatasetOptions rows;               // validation_share > 0: a share of `data` is the validation data
  std::string export_dtype = "F32";  // of the trained model: F32, BF16, F16

  int64_t checkpoint_every = 0;  // in steps; 0: only at the end
  std::string checkpoints;       // directory; empty: output + "/checkpoints"

  int64_t evaluate_every = 0;   // in steps; 0: only at the end, if there is validation data
  int64_t evaluation_rows = 0;  // at most that many; 0: all
  int64_t patience = 0;         // evaluations in a row without a better loss that end the run; 0: never

  int64_t recompute_every = 0;      // activation checkpointing of every k-th block; 1: of all; 0: of none
  std::vector<std::string> freeze;  // parameters whose names begin with one of these are not trained

  std::optional<LoraOptions> lora;  // adapters are trained, and nothing else
  std::string lora_adapter;         // directory of an adapter to continue from; empty: new adapters
  bool lora_merge = false;          // `output` gets the whole model with merged adapters, not only the adapters

  std::vector<std::string> sample_prompts;  // continued with the likeliest tokens after each evaluation
  int64_t sample_tokens = 40;

  int64_t log_every = 10;  // in steps

  std::string device = "auto";  // as choose_device() reads it; for the program, as train() has the World's
};

// A configuration file's text: DeepSpeed's keys, and "train". Throws ConfigError with the JSON path of what is wrong.
struct TrainConfig {
  TrainOptions train;
  ParsedConfig engine;
  bool schedule_ends_with_run = false;  // its total_num_steps is "auto", and train() counts the steps of the epochs
};
TrainConfig parse_train_config(const std::string& json, const ConfigContext& context, const std::string& source);

// Progress of a run, the same on every rank.
struct TrainStep {
  int64_t step = 0, total = 0;  // steps done, including those before a checkpoint; steps of the whole run
  double loss = 0;              // mean over the targets of the step's rows; 0 without targets
  int64_t targets = 0;
  double grad_norm = 0, lr = 0;
  int64_t tokens = 0;  // of the step, with padding
  bool applied = true;
};
struct Evaluation {
  int64_t step = 0;
  double loss = 0;  // mean of all targets; perplexity = exp(loss)
  int64_t targets = 0;
};
struct TrainObserver {
  virtual ~TrainObserver() = default;
  virtual void planned(const std::string& /*description*/) {}   // on rank 0, first: what the run will do, in lines
  virtual void started(int64_t /*step*/, int64_t /*total*/) {}  // step > 0: resumed from a checkpoint, maybe of the end
  virtual void stepped(const TrainStep& /*step*/) {}
  virtual void evaluated(const Evaluation& /*evaluation*/) {}  // not called when no row has a target
  virtual void sampled(int64_t /*step*/, const std::string& /*text*/) {}
};

enum class TrainEnd : uint8_t { kDone, kStoppedEarly, kInterrupted };

// Collective. Resumes from the newest checkpoint, if there is one. At the end the trained model is in `output`. When
// `stop` becomes true on any rank (a signal handler may set it), the run ends after its current step, or within an
// evaluation, with a checkpoint instead. While texts are still being tokenized it ends at once, before
// TrainObserver::started(). Throws Error on every rank.
TrainEnd train(const TrainConfig& config, World& world, TrainObserver& observer, const std::atomic<bool>& stop);

// What train() would do, as lines of text: model, data and its first row, steps, and what each of the
// `config.engine.config.world_size` ranks holds, and whether that fits; with `on_device`, of a device's memory and
// beside it. `ranks_of_host` share this host's memory. Tokenizes texts into token files, writes nothing else. Throws
// Error.
std::string describe_run(const TrainConfig& config, bool on_device = false, int ranks_of_host = 1);

}  // namespace zeroshard
