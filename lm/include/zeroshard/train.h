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

// Trains the model of a Hugging Face directory: what `zeroshard train` does.
namespace zeroshard {

class World;

// The object "train" of a configuration file (docs/train.md).
struct TrainOptions {
  std::string model;          // directory with config.json, and weights unless from_scratch
  std::string output;         // directory that gets the trained model; refused where it holds another one
  bool from_scratch = false;  // with the architecture's own initialisation
  uint64_t seed = 0;          // of initialisation, the order of the data, dropout
  int64_t steps = 0;          // one of these two is given
  double epochs = 0;

  // Files of tokens, or of text: names that end in .txt, .jsonl, .ndjson, .json or .parquet.
  std::vector<std::string> data, validation_data;
  TokenizeOptions text;              // how text becomes tokens
  DatasetOptions rows;               // validation_share > 0: a share of `data` is the validation data
  std::string export_dtype = "F32";  // of the trained model: F32, BF16, F16

  int64_t checkpoint_every = 0;  // in steps; 0: at the end alone
  std::string checkpoints;       // directory; empty: output + "/checkpoints"

  int64_t evaluate_every = 0;   // in steps; 0: at the end alone, when there is validation data
  int64_t evaluation_rows = 0;  // at most that many; 0: all
  int64_t patience = 0;         // evaluations in a row without a better loss that end the run; 0: never

  int64_t recompute_every = 0;      // activation checkpointing of every k-th block; 1: of all; 0: of none
  std::vector<std::string> freeze;  // parameters whose name begins so are not trained

  std::optional<LoraOptions> lora;  // adapters are trained, and nothing else
  std::string lora_adapter;         // directory with the adapter to go on from; empty: new ones
  bool lora_merge = false;          // `output` gets the whole model with the adapters merged in, not these alone

  std::vector<std::string> sample_prompts;  // continued with the likeliest tokens after each evaluation
  int64_t sample_tokens = 40;

  int64_t log_every = 10;  // in steps
};

// A configuration file's text: DeepSpeed's keys, and "train". Throws ConfigError with the JSON path of what is wrong.
struct TrainConfig {
  TrainOptions train;
  ParsedConfig engine;
};
TrainConfig parse_train_config(const std::string& json, const ConfigContext& context, const std::string& source);

// What a run tells while it goes on, on every rank alike.
struct TrainStep {
  int64_t step = 0, total = 0;  // steps done, with those before a checkpoint; that the run will have
  double loss = 0;              // mean of the targets of the step's rows; 0 without any
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
  virtual void started(int64_t /*step*/, int64_t /*total*/) {}  // step > 0: goes on from a checkpoint
  virtual void stepped(const TrainStep& /*step*/) {}
  virtual void evaluated(const Evaluation& /*evaluation*/) {}  // not called where no row has a target
  virtual void sampled(int64_t /*step*/, const std::string& /*text*/) {}
};

enum class TrainEnd : uint8_t { kDone, kStoppedEarly, kInterrupted };

// Collective. Goes on from the newest checkpoint, if there is one. At the end the trained model is in `output`. When
// `stop` becomes true on any rank (a signal handler may set it), the run ends after its current step with a checkpoint
// instead; while texts are still made into tokens it ends at once, before TrainObserver::started(). Throws Error on
// every rank.
TrainEnd train(const TrainConfig& config, World& world, TrainObserver& observer, const std::atomic<bool>& stop);

// What train() would do, as lines of text: the model, the data and its first row, steps, and what each of
// `config.engine.config.world_size` ranks holds. Texts become files of tokens, nothing else is written. Throws Error.
std::string describe_run(const TrainConfig& config);

}  // namespace zeroshard
