#include <ATen/Context.h>
#include <torch/utils.h>

#include <algorithm>
#include <cmath>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/check.h"
#include "base/log.h"
#include "comm/comm.h"
#include "file/hash.h"
#include "ops/recompute.h"
#include "train/agreed_values.h"
#include "train/batch.h"
#include "train/describe_run.h"
#include "train/evaluation_state.h"
#include "train/loss_sum.h"
#include "train/made_model.h"
#include "train/model_directory.h"
#include "train/network_fields.h"
#include "train/output_lock.h"
#include "train/prompts.h"
#include "train/run_data.h"
#include "train/sampler.h"
#include "train/text_data.h"
#include "zeroshard/causal_lm.h"
#include "zeroshard/nn.h"
#include "zeroshard/rank_observer.h"
#include "zeroshard/sequence.h"
#include "zeroshard/tokenizer.h"
#include "zeroshard/train.h"
#include "zeroshard/world.h"

namespace zeroshard {
namespace {

// Runs the parts of a model as units of an engine. A block runs with activation checkpointing if its index is a
// multiple of `recompute_every`. If `recompute_every` is 0, no block does.
class EngineRunner final : public PartRunner {
 public:
  EngineRunner(ModuleEngine& engine, int64_t recompute_every) : engine_(engine), recompute_every_(recompute_every) {}

  at::Tensor run(const torch::nn::Module& part, const at::Tensor& input, const Forward& forward) const override {
    return engine_.around(part, [&] { return forward(input); });
  }
  at::Tensor run_block(int64_t index, const torch::nn::Module& part, const at::Tensor& input,
                       const Forward& forward) const override {
    if (recompute_every_ == 0 || index % recompute_every_ != 0) return run(part, input, forward);
    return recompute(
        input, [this, &part, forward](const at::Tensor& again) { return run(part, again, forward); },
        [this](const at::Tensor& kept) { return keep(kept); });
  }

 private:
  std::function<at::Tensor()> keep(const at::Tensor& input) const {
    auto kept = engine_.keep(input);
    if (!kept) return {};
    return [kept = std::move(kept)] { return kept->bring_back(); };
  }

  ModuleEngine& engine_;
  int64_t recompute_every_;
};

// Returns the engine's configuration. If its schedule ends with the run, the schedule gets the length `steps`.
ParsedConfig with_length(const TrainConfig& config, int64_t steps) {
  ParsedConfig parsed = config.engine;
  if (!config.schedule_ends_with_run) return parsed;
  const auto set = [steps](auto& schedule) {
    if constexpr (requires { schedule.total_num_steps; }) schedule.total_num_steps = steps;
  };
  std::visit(set, *parsed.config.scheduler);
  for (ConfigValue& value : parsed.values)
    if (value.path == "scheduler.params.total_num_steps")
      value = {value.path, std::to_string(steps), "auto: the steps of the run"};
  return parsed;
}

class Run {
 public:
  Run(const TrainConfig& config, World& world, TrainObserver& observer, const std::atomic<bool>& stop)
      : options_(config.train),
        config_(config.engine.config),
        world_(world),
        observer_(observer),
        stop_(stop),
        made_(make_model(config)),
        network_(network_fields(options_.model)),
        model_(made_.model),
        training_(training_data(options_, *model_)),
        validation_(validation_data(options_, *model_)),
        prompts_(encode_prompts(options_, *model_)),
        total_(planned_steps(config)),
        engine_(*model_,
                with_agreed_values(with_length(config, total_), options_, network_, *training_, validation_.get()),
                world, values_of(options_, *model_)),
        runner_(engine_, options_.recompute_every),
        sequence_(world_.sequence() ? std::make_shared<SequenceGroup>(world_.sequence()) : nullptr) {
    torch::manual_seed(options_.seed + static_cast<uint64_t>(world_.rank()));
  }

  TrainEnd run() {
    resume();
    observer_.started(engine_.steps(), total_);
    bool goes_on = evaluate_if_due();
    while (goes_on && engine_.steps() < total_ && !has_stalled()) {
      if (stop_) engine_.request_stop();
      const bool interrupted = step();
      const int64_t done = engine_.steps();
      goes_on = !interrupted || done == total_;
      if (!goes_on) break;
      // See Note [Evaluations after a save].
      if (is_due(options_.checkpoint_every, done) && done < total_) save();
      goes_on = evaluate_if_due();
    }
    if (goes_on) check_trained();
    save_last();
    if (!goes_on || (validation_ && evaluations_.step != engine_.steps() && !evaluate())) return TrainEnd::kInterrupted;
    engine_.run_together("writing the trained model", [&] {
      if (world_.rank() == 0) write_result(options_, made_);
    });
    return engine_.steps() < total_ ? TrainEnd::kStoppedEarly : TrainEnd::kDone;
  }

 private:
  // Throws StateError if all steps of the run were skipped. A short run can skip all its steps, because only
  // zeroshard.max_skipped_steps skipped steps in a row end a run.
  void check_trained() const {
    if (engine_.steps() == 0 || engine_.skipped_in_a_row() < engine_.steps()) return;
    throw StateError(concat("none of the run's ", engine_.steps(),
                            " steps was applied, because no gradient was finite: the model is as it was, and '",
                            options_.output,
                            "' gets none. Lower the learning rate, look for inf or NaN in the weights of '",
                            options_.model, "', or train in bf16"));
  }

  // Returns the number of steps of the run. Throws ValueError if the run could not learn (see check_targets()). On rank
  // 0, tells the observer about the run, before any parameter is read.
  int64_t planned_steps(const TrainConfig& config) {
    const int64_t steps = total_steps(options_, *training_, config_.train_batch_size);
    const std::string warning = check_targets(options_, config_.train_batch_size, steps, *training_, validation_.get());
    if (world_.rank() == 0) {
      observer_.planned(
          describe_plan(config, *model_, *training_, validation_.get(), steps, !world_.device().is_cpu()));
      if (!warning.empty()) log(LogLevel::kWarning, warning);
    }
    return steps;
  }

  bool has_stalled() const { return options_.patience > 0 && evaluations_.without_progress >= options_.patience; }

  static bool is_due(int64_t every, int64_t step) { return every > 0 && step > 0 && step % every == 0; }

  at::Tensor loss_of(const TrainBatch& batch) {
    return sum_of_losses(model_->logits(batch.tokens, runner_), batch.targets);
  }

  // The ranks that share rows form a row group. row_groups() returns the number of groups, and row_group() the index of
  // this rank's group.
  int64_t row_groups() const { return world_.world_size() / config_.sequence_parallel_size; }
  int64_t row_group() const { return world_.rank() / config_.sequence_parallel_size; }

  double sum_over_ranks(double value) { return world_.mean(value) * world_.world_size(); }

  // Returns the micro-batches of this rank for the next step. The rows of a step go to micro-batch 0 of each row group
  // in order, then to micro-batch 1 of each row group, and so on. So a step has the same rows for any number of ranks.
  // Each rank of a row group gets its piece of each row.
  std::vector<TrainBatch> next_batches() {
    std::vector<TrainBatch> batches;
    const int64_t size = config_.micro_batch_size;
    for (int64_t micro = 0; micro < config_.grad_accumulation_steps; ++micro) {
      std::vector<TokenRow> rows;
      const int64_t first = engine_.progress().global_samples + (micro * row_groups() + row_group()) * size;
      for (int64_t i = 0; i < size; ++i) rows.push_back(training_->row(first + i));
      batches.push_back(make_batch(rows, world_.device(), sequence_));
    }
    return batches;
  }

  // Seeds the device's random generator from the seed, the step and the rank, because a checkpoint has only the random
  // state of the host. Does nothing on the CPU, whose generator is that of the host.
  void seed_device() {
    if (world_.device().is_cpu()) return;
    at::Generator generator = at::globalContext().defaultGenerator(world_.device());
    const std::scoped_lock lock(generator.mutex());
    const std::string key = concat(options_.seed, ' ', engine_.steps(), ' ', world_.rank());
    generator.set_current_seed(hash_bytes(key.data(), static_cast<int64_t>(key.size())));
  }

  // Trains one step. Returns whether a rank has requested the end of the run. The loss of a step is the mean over all
  // its targets, on all ranks and in all micro-batches.
  bool step() {
    const std::vector<TrainBatch> batches = next_batches();
    int64_t own_targets = 0;
    for (const TrainBatch& batch : batches) own_targets += batch.num_targets;
    const double all_targets = std::round(sum_over_ranks(static_cast<double>(own_targets)));
    const double targets = std::max(1.0, all_targets);
    const double averaged_over = config_.average_gradients ? world_.world_size() : 1;
    const double weight = static_cast<double>(config_.grad_accumulation_steps) * averaged_over / targets;
    model_->train();
    seed_device();
    LossSum sum(static_cast<int64_t>(batches.size()), world_.device());
    for (const TrainBatch& batch : batches) {
      engine_.begin_forward(/*training=*/true);
      const at::Tensor loss = loss_of(batch);
      engine_.backward(loss * weight);
      sum.add(loss);
    }
    TrainStep told;
    told.lr = engine_.lr();
    const StepResult result = engine_.step();
    told.step = engine_.steps();
    told.total = total_;
    told.loss = sum_over_ranks(sum.total()) / targets;
    told.targets = static_cast<int64_t>(all_targets);
    told.grad_norm = result.grad_norm;
    told.tokens = config_.train_batch_size * options_.rows.length;
    told.applied = result.applied;
    observer_.stepped(told);
    return result.stop;
  }

  // Evaluates if an evaluation is due after this step and is not yet done. Does not evaluate after the last step,
  // because run() does that after the last save. Returns false if a signal came during the evaluation, else true.
  bool evaluate_if_due() {
    const int64_t done = engine_.steps();
    return !is_due(options_.evaluate_every, done) || done >= total_ || evaluations_.step == done || evaluate();
  }

  // Called before each forward pass of an evaluation, with the number of the pass, from 0. Reports progress of this
  // rank to the launcher. Before every fourth pass, returns on all ranks whether a signal came on any rank. Before the
  // other passes, returns false without communication, which would take longer than a pass of a small model.
  bool is_stopped(int64_t pass) {
    if (world_.observer()) world_.observer()->step_finished(engine_.steps());
    return pass % 4 == 0 && world_.mean(stop_ ? 1 : 0) > 0;
  }

  // Evaluates the model. Returns false if a signal ended the evaluation. In that case the results are dropped, and the
  // run that continues later repeats the evaluation.
  bool evaluate() {
    const at::NoGradGuard no_grad;
    model_->eval();
    const std::optional<Evaluation> evaluation = validate();
    if (!evaluation) return false;
    std::vector<std::string> texts;
    for (const std::vector<int32_t>& prompt : prompts_.ids) {
      const std::optional<std::string> text = sample(prompt);
      if (!text) return false;
      texts.push_back(*text);
    }
    record(*evaluation);
    for (const std::string& text : texts) observer_.sampled(engine_.steps(), text);
    return true;
  }

  void record(const Evaluation& evaluation) {
    evaluations_.step = evaluation.step;
    if (evaluation.targets > 0) {
      evaluations_.without_progress = evaluation.loss < evaluations_.best ? 0 : evaluations_.without_progress + 1;
      evaluations_.best = std::min(evaluations_.best, evaluation.loss);
      observer_.evaluated(evaluation);
    }
    if (saved_ == evaluation.step && world_.rank() == 0) write_evaluation(options_.checkpoints, evaluations_);
  }

  // Computes the loss of the validation rows. Returns nothing if a signal came. Every rank must call the units equally
  // often, so a rank without remaining rows runs a row without targets.
  std::optional<Evaluation> validate() {
    const int64_t limit = rows_of_evaluation(options_, *validation_), size = config_.micro_batch_size;
    const int64_t rows_at_once = size * row_groups();
    LossSum sum((limit + rows_at_once - 1) / rows_at_once, world_.device());
    int64_t targets = 0;
    for (int64_t begin = 0; begin < limit; begin += rows_at_once) {
      if (is_stopped(begin / rows_at_once)) return std::nullopt;
      std::vector<TokenRow> rows;
      const int64_t first = begin + row_group() * size;
      for (int64_t i = first; i < std::min(first + size, limit); ++i) rows.push_back(validation_->row(i));
      if (rows.empty()) {
        rows.push_back(validation_->row(0));
        std::fill(rows.front().targets.begin(), rows.front().targets.end(), kNoTarget);
      }
      const TrainBatch batch = make_batch(rows, world_.device(), sequence_);
      engine_.begin_forward(/*training=*/false);
      sum.add(loss_of(batch));
      targets += batch.num_targets;
    }
    Evaluation evaluation;
    evaluation.step = engine_.steps();
    evaluation.targets = static_cast<int64_t>(std::round(sum_over_ranks(static_cast<double>(targets))));
    evaluation.loss = sum_over_ranks(sum.total()) / std::max(1.0, static_cast<double>(evaluation.targets));
    return evaluation;
  }

  // Returns `prompt` continued with the most likely tokens, as text, or nothing if a signal came.
  std::optional<std::string> sample(const std::vector<int32_t>& prompt) {
    const Tokenizer& tokenizer = *prompts_.tokenizer;
    Sampler sampler({.temperature = 0});
    const int64_t most = std::min(int64_t(prompt.size()) + options_.sample_tokens, model_->max_length());
    KvCache cache(most);
    std::vector<int32_t> ids = prompt, next = prompt;
    // The loop does not end at an end token, because every rank must run the same number of tokens.
    while (int64_t(ids.size()) < most) {
      if (is_stopped(int64_t(ids.size() - prompt.size()))) return std::nullopt;
      engine_.begin_forward(/*training=*/false);
      const at::Tensor logits = model_->logits(batch_of(next, world_.device()), runner_, &cache).flatten();
      next = {sampler.choose(logits.to(at::kCPU, at::kFloat))};
      ids.push_back(next.front());
    }
    const auto ends = [&](int32_t id) { return id == tokenizer.eos() || id >= tokenizer.vocab_size(); };
    ids.erase(std::find_if(ids.begin() + std::ptrdiff_t(prompt.size()), ids.end(), ends), ids.end());
    return tokenizer.decode(ids, /*skip_special=*/true);
  }

  void save() {
    if (saved_ == engine_.steps()) return;
    nlohmann::json client = {{"rows", engine_.progress().global_samples},
                             {"data", training_->digest()},
                             {"seed", options_.seed},
                             {"adapter_scale", adapter_scale()},
                             {"network", network_}};
    client.update(evaluations_.to_json());
    engine_.save(options_.checkpoints, client.dump());
    saved_ = engine_.steps();
  }

  // Saves the state at the end of this process's part of the run, and throws IoError if that fails.
  // zeroshard.checkpoint.on_error "warn" is only for saves after which training continues.
  void save_last() {
    if (saved_ != engine_.steps()) forget_failed_save();
    save();
    if (!engine_.wait_for_checkpoint())
      throw IoError(concat("the last checkpoint, of step ", engine_.steps(), ", was not saved in '",
                           options_.checkpoints, "': rank 0 has logged why"));
  }

  // Waits for an earlier save. If it failed, drops the error, which rank 0 logs, because this error must not prevent
  // the last save.
  void forget_failed_save() {
    try {
      engine_.wait_for_checkpoint();
    } catch (const IoError& error) {
      if (world_.rank() == 0) log(LogLevel::kError, concat("a checkpoint was not saved: ", error.what()));
    }
  }

  // Returns the scale of the adapters as a value for a checkpoint, or null if there are no adapters.
  nlohmann::json adapter_scale() const { return made_.lora ? nlohmann::json(made_.lora->scale()) : nlohmann::json(); }

  void resume() {
    LoadOptions load;
    load.may_be_first = true;  // a missing checkpoint is no error, and started() reports a new run
    bool accepted = false;
    load.accept = [&](const std::string& state) {
      check_data(nlohmann::json::parse(state).at("client"));
      accepted = true;
    };
    std::optional<std::string> client;
    try {
      client = engine_.load(options_.checkpoints, load);
    } catch (const ValueError& error) {
      if (!accepted) throw;
      throw ValueError(concat("the checkpoint in '", options_.checkpoints, "' is not of this run: ", error.what(),
                              ". Name another folder in train.output or train.checkpoints.folder"));
    }
    if (client) resume_from(nlohmann::json::parse(*client));
    evaluations_ = read_evaluation(options_.checkpoints, engine_.steps(), evaluations_, world_);
  }

  void resume_from(const nlohmann::json& state) {
    engine_.progress().global_samples = state.at("rows").get<int64_t>();  // old checkpoints have the count only here
    saved_ = engine_.steps();
    evaluations_ = evaluation_state_of(state, saved_);
    const RowsDone done{engine_.steps(), engine_.progress().global_samples};
    total_ = total_steps(options_, *training_, config_.train_batch_size, done);
  }

  void check_data(const nlohmann::json& client) const {
    ZS_CHECK(client.is_object() && client.contains("data"), "the checkpoint in '", options_.checkpoints,
             "' was not saved by `zeroshard train`: name another folder in train.checkpoints.folder");
    const bool same_data = client.at("data") == training_->digest();
    const nlohmann::json seed = client.value("seed", nlohmann::json());  // null in a checkpoint of earlier versions
    ZS_CHECK(same_data || seed.is_null() || seed == options_.seed, "the checkpoint in '", options_.checkpoints,
             "' was made with train.seed ", seed.dump(), ", this run has ", options_.seed,
             ": rows would be lost or repeated. Give that seed, or another train.checkpoints.folder");
    ZS_CHECK(same_data, "the checkpoint in '", options_.checkpoints,
             "' was made with other data, or another length, packing, order", seed.is_null() ? " or seed" : "",
             ": rows would be lost or repeated. Give the same train.data", seed.is_null() ? " and train.seed" : "",
             ", or another train.checkpoints.folder");
    const nlohmann::json scale = client.value("adapter_scale", nlohmann::json());
    ZS_CHECK(scale == adapter_scale(), "the checkpoint in '", options_.checkpoints, "' was made ",
             scale.is_null() ? "without adapters" : concat("with adapters of scale ", scale.dump()),
             ", and this run has ",
             adapter_scale().is_null() ? "none" : concat("adapters of scale ", adapter_scale().dump()),
             ". Give the same \"train.lora\", or another train.checkpoints.folder");
    const std::string changed = changed_fields(client.value("network", nlohmann::json::object()), network_);
    ZS_CHECK(changed.empty(), "the checkpoint in '", options_.checkpoints, "' is of another network than '",
             options_.model, "/config.json' describes: ", changed,
             ". Restore that file, or name another train.checkpoints.folder");
  }

  const TrainOptions& options_;
  const Config& config_;
  World& world_;
  TrainObserver& observer_;
  const std::atomic<bool>& stop_;
  MadeModel made_;
  nlohmann::json network_;  // fields of config.json that must equal those of the checkpoint
  std::shared_ptr<CausalLM> model_;
  std::unique_ptr<Dataset> training_;
  std::unique_ptr<Dataset> validation_;  // null if there is none
  Prompts prompts_;
  int64_t total_;  // number of steps of the run
  ModuleEngine engine_;
  EngineRunner runner_;
  std::shared_ptr<const SequenceGroup> sequence_;  // null: rows are whole
  int64_t saved_ = 0;                              // step of the last save or load; 0: none
  EvaluationState evaluations_;
};

}  // namespace

TrainEnd train(const TrainConfig& config, World& world, TrainObserver& observer, const std::atomic<bool>& stop) {
  const int sharing = config.engine.config.sequence_parallel_size;
  const int connected = world.sequence() ? world.sequence()->world_size() : 1;
  ZS_CHECK(connected == sharing, "sequence_parallel_size is ", sharing, ", but ", connected,
           " rank(s) share rows in the World that train() got. Make that World with the same configuration, from the "
           "launcher's variables");
  TrainConfig own = config;
  check_output(own.train.model, own.train.output, own.train.checkpoints);
  const std::vector<DirectoryLock> locks = lock_output(own.train, world);
  if (!tokenize_texts(own.train, world, stop)) return TrainEnd::kInterrupted;
  return Run(own, world, observer, stop).run();
}

}  // namespace zeroshard
