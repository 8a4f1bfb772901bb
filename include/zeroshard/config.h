#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "zeroshard/dtype.h"
#include "zeroshard/placement.h"

// The resolved configuration. Only parse_config() translates DeepSpeed's JSON keys to the names of these members.
namespace zeroshard {

// Settings of loss scaling. They alone do not say that parameters are fp16: Config::compute_dtype does. With autocast
// to fp16 the parameters are not fp16.
struct Fp16Config {
  bool enabled = false;
  bool auto_cast = false;
  double loss_scale = 0;  // 0: dynamic
  int initial_scale_power = 16;
  int64_t loss_scale_window = 1000;
  int hysteresis = 2;
  bool consecutive_hysteresis = false;
  double min_loss_scale = 1;
};

// The settings that only a param group of Muon has.
struct MuonOptions {
  bool use_muon = false;  // true: Muon orthogonalises the matrices of this group. AdamW updates groups without it
  // true: Newton-Schulz iterates on products of the smaller side (DeepSpeed's "gram"). false: it iterates as
  // torch.optim.Muon does. The members below have the number of iterations and the coefficients.
  bool ns_gram = false;
  double ns_steps = 5, ns_a = 3.4445, ns_b = -4.7750, ns_c = 2.0315;
  // Muon scales the learning rate of an m x n matrix by sqrt(max(1, m / n)) (by_rows), by 0.2 sqrt(max(m, n)) (by_rms),
  // or not at all.
  bool rate_by_rows = true, rate_by_rms = false;
};

// The settings that a param group of any optimizer can have.
struct CommonOptions {
  double lr = 1e-3;
  double weight_decay = 0;
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8;  // Adam, AdamW, Lion
  double momentum = 0, dampening = 0;             // SGD; Muon uses momentum, too
  double lr_decay = 0;                            // Adagrad
  bool nesterov = false, maximize = false, bias_correction = true;
  bool decoupled_weight_decay = true;  // for Adam; true: weight decay as in AdamW
};

// The hyper-parameters of one param group. Every step reads them anew. An optimizer ignores the fields that it does not
// use.
struct ParamGroupOptions : CommonOptions, MuonOptions {
  // Calls visit(name, member) once per field, in the order of this list. `member` is the pointer to member.
  template <typename Visit>
  static constexpr void for_each(Visit&& visit) {
    visit("lr", &ParamGroupOptions::lr);
    visit("weight_decay", &ParamGroupOptions::weight_decay);
    visit("beta1", &ParamGroupOptions::beta1);
    visit("beta2", &ParamGroupOptions::beta2);
    visit("eps", &ParamGroupOptions::eps);
    visit("momentum", &ParamGroupOptions::momentum);
    visit("dampening", &ParamGroupOptions::dampening);
    visit("lr_decay", &ParamGroupOptions::lr_decay);
    visit("nesterov", &ParamGroupOptions::nesterov);
    visit("maximize", &ParamGroupOptions::maximize);
    visit("bias_correction", &ParamGroupOptions::bias_correction);
    visit("decoupled_weight_decay", &ParamGroupOptions::decoupled_weight_decay);
    visit("use_muon", &ParamGroupOptions::use_muon);
    visit("ns_gram", &ParamGroupOptions::ns_gram);
    visit("ns_steps", &ParamGroupOptions::ns_steps);
    visit("ns_a", &ParamGroupOptions::ns_a);
    visit("ns_b", &ParamGroupOptions::ns_b);
    visit("ns_c", &ParamGroupOptions::ns_c);
    visit("rate_by_rows", &ParamGroupOptions::rate_by_rows);
    visit("rate_by_rms", &ParamGroupOptions::rate_by_rms);
  }
};

// The "optimizer" block.
struct OptimizerConfig : ParamGroupOptions {
  enum class Type : uint8_t { kAdam, kAdamW, kSgd, kLion, kAdagrad, kMuon };
  Type type = Type::kAdamW;
  double adam_lr = 3e-4;  // for Muon: learning rate of parameters that are not matrices; `lr` is the rate of matrices

  // Returns the options of Muon's two param groups: the matrices, and all other parameters.
  ParamGroupOptions of_matrices() const;
  ParamGroupOptions of_others() const;
};

// A value of a schedule: either the same for every param group, or one value for each.
struct PerGroup {
  PerGroup(double value) : all(value) {}  // NOLINT(google-explicit-constructor): most schedules have one number
  explicit PerGroup(std::vector<double> values) : each(std::move(values)) {}
  bool operator==(const PerGroup&) const = default;
  double of(size_t group) const { return each.empty() ? all : each.at(group); }

  double all = 0;
  std::vector<double> each;  // values of the param groups; if not empty, they replace `all`
};

// LR schedules with DeepSpeed's formulas and defaults. An unset `warmup_max_lr` (or a similar limit) means the param
// group's lr.
struct WarmupLRConfig {
  PerGroup warmup_min_lr = 0;
  std::optional<PerGroup> warmup_max_lr = std::nullopt;
  int64_t warmup_num_steps = 1000;
  bool log_warmup = true;
};
struct WarmupDecayLRConfig {
  int64_t total_num_steps = 0;
  PerGroup warmup_min_lr = 0, warmup_max_lr = 1e-3;
  int64_t warmup_num_steps = 1000;
  bool log_warmup = true;
};
struct WarmupCosineLRConfig {
  int64_t total_num_steps = 0;
  double warmup_min_ratio = 0;
  int64_t warmup_num_steps = 1000;
  double cos_min_ratio = 1e-4;
  bool log_warmup = true;
};
struct OneCycleConfig {
  PerGroup cycle_min_lr = 0, cycle_max_lr = 0;
  double decay_lr_rate = 0;
  int64_t cycle_first_step_size = 2000;
  std::optional<int64_t> cycle_second_step_size = std::nullopt;
  int64_t cycle_first_stair_count = 0;
  std::optional<int64_t> cycle_second_stair_count = std::nullopt;
  int64_t decay_step_size = 0;
  bool cycle_momentum = true;
  PerGroup cycle_min_mom = 0.8, cycle_max_mom = 0.9;
  double decay_mom_rate = 0;
};
struct LRRangeTestConfig {
  PerGroup min_lr = 1e-3;
  int64_t step_size = 2000;
  double step_rate = 1.0;
  bool staircase = false;
};
using SchedulerConfig =
    std::variant<WarmupLRConfig, WarmupDecayLRConfig, WarmupCosineLRConfig, OneCycleConfig, LRRangeTestConfig>;

struct CheckpointConfig {
  bool async = true;  // true: training continues while a thread writes a copy of the state
  int keep = 0;       // how many of the newest checkpoints are kept; 0: all
  enum class OnError : uint8_t { kRaise, kWarn };
  OnError on_error = OnError::kRaise;  // what happens after a background save has failed
};

// Settings of metric files ("tensorboard", "csv_monitor"). Rank 0 of an engine in Python writes the files to
// output_path/job_name.
struct MetricFilesConfig {
  bool enabled = false;
  std::string output_path;
  std::string job_name = "DeepSpeedJobName";
};
struct WandbConfig {
  bool enabled = false;
  std::optional<std::string> group = std::nullopt, team = std::nullopt;
  std::string project = "deepspeed";
};

// The place of some state in a run. With kAuto the engine tries the other values in their order, and takes the first
// with which the run fits into the memory limits of its ranks. On a rank that trains on the CPU, kCpu changes nothing
// because everything is in host memory already.
enum class OffloadDevice : uint8_t { kNone, kCpu, kNvme, kAuto };

constexpr std::string_view name_of(OffloadDevice device) {
  switch (device) {
    case OffloadDevice::kNone:
      return "none";
    case OffloadDevice::kCpu:
      return "cpu";
    case OffloadDevice::kNvme:
      return "nvme";
    case OffloadDevice::kAuto:
      return "auto";
  }
  return "?";
}

// "zero_optimization.offload_optimizer": the place of master weights, moments and reduced gradients.
struct OffloadOptimizerConfig {
  using Device = OffloadDevice;
  Device device = Device::kNone;
  double ratio = 1;  // share of each unit's states that is offloaded; the device keeps and updates the other elements
  std::vector<std::string> nvme_path;  // directories of swap files; with kNvme at least one
  int buffer_count = 4;                // with kNvme: chunks of states that are in memory at one time
  bool pin_memory = true;              // page-locked host memory, which a GPU can copy to and from directly
};

// "zero_optimization.offload_param": the place of parameter shards at stage 3.
struct OffloadParamConfig {
  using Device = OffloadDevice;
  Device device = Device::kNone;
  bool pin_memory = true;              // page-locked host memory, which a GPU can copy from directly
  std::vector<std::string> nvme_path;  // directories of swap files; with kNvme at least one
  // With kNvme: the number of shards that are in host memory at one time on their way, and the largest number of
  // elements of each.
  int buffer_count = 5;
  int64_t buffer_numel = 100'000'000;
  int64_t max_in_memory = 1'000'000'000;  // with kNvme: elements of a rank's parameters that stay in memory
};

// "zeroshard.offload": memory limits of one rank in bytes, and the place of reduced gradients and activation
// checkpoints.
struct OffloadConfig {
  enum class Gradients : uint8_t { kAuto, kDevice, kCpu, kNvme };
  enum class Activations : uint8_t { kNone, kCpu, kNvme };
  // If a rank trains on the CPU, both keys limit the same memory and the smaller one counts. If both are unset, all
  // ranks of a host together can use as much memory as the host has.
  std::optional<int64_t> device_memory, host_memory;
  bool verify = true;  // true: compare everything that is read from swap files with its checksum
  // The place of reduced gradients. kNvme: in swap files, like the states. kAuto with a GPU: on the host if the states
  // are offloaded, else on the device. On the CPU all gradients are in host memory.
  Gradients gradients = Gradients::kAuto;
  // The place of activation checkpoints (the inputs of checkpointed modules) between forward and backward. kNvme: in
  // files in the nvme_path of offload_optimizer or, if that is unset, of offload_param. kCpu changes nothing on the CPU
  // because everything is in host memory already.
  Activations activations = Activations::kNone;
  // With a GPU, true: the host updates the parameters of a step while the device computes the next step with the
  // parameters from before the update.
  bool delayed_update = false;
};

// "aio": settings of requests to swap files. An unset value means zeroshard's own default.
struct AioConfig {
  std::optional<int64_t> block_size;             // bytes of a request, a multiple of 4096
  std::optional<int> queue_depth, thread_count;  // most requests in flight; threads if io_uring is not available
};

struct Config {
  int64_t train_batch_size = 1, micro_batch_size = 1, grad_accumulation_steps = 1;
  bool managed_accumulation = true;  // false: every step() updates the parameters, after any number of micro-batches
  int world_size = 1;
  int shard_size = 0;  // ranks that shard one copy of the parameters; 0: all
  // Whether groups of shard_size ranks share one copy of the optimizer states, at stage 3; false: each has a copy.
  bool groups_share_states = false;
  bool quantized_gradients = false;   // true: replicas of the states send each other sums of gradients as 8-bit numbers
  bool quantized_weights = false;     // true: groups that share the states send each other parameters as 8-bit numbers
  int sequence_parallel_size = 1;     // ranks that train on the same rows; parameters are still sharded over all ranks
  double gradient_clipping = 1;       // largest gradient norm; 0: no clipping. 1 is DeepSpeed's default since 0.19.3
  int64_t steps_per_print = 0;        // 0: never
  bool wall_clock_breakdown = false;  // true: steps_per_print also shows the time of forward, backward and step

  DType compute_dtype = DType::kFloat32;  // bf16 or fp16 if the configuration enables it
  Fp16Config fp16;
  bool bf16_auto_cast = false;          // true: cast inputs of forward to bf16, like fp16.auto_cast; only with bf16
  std::optional<DType> autocast_dtype;  // if set, forward runs in torch.autocast with this dtype; for engines in Python
  std::optional<DType> communication_dtype;  // dtype of gradients on the wire; unset: the compute dtype
  std::optional<DType> grad_accum_dtype;     // dtype of reduced gradients; unset: fp32 while accumulating
  double prescale = 1;  // divisor of gradients before the sum over ranks; the remaining divisor follows after the sum
  bool average_gradients = true;  // gradient_allreduce_op; true: mean, false: sum

  std::optional<OptimizerConfig> optimizer;  // unset: the caller brings an optimizer
  std::optional<SchedulerConfig> scheduler;
  bool allow_untested_optimizer = false;
  bool dataloader_drop_last = false;

  int stage = 0;
  bool overlap_comm = true;
  int64_t prefetch_numel = 50'000'000;      // 0: no prefetch; any other value: one unit is gathered before its use
  int64_t persistence_threshold = 100'000;  // units of at most this many elements stay unsharded
  bool gather_16bit_weights_on_save = false;
  OffloadOptimizerConfig offload_optimizer;
  OffloadParamConfig offload_param;
  AioConfig aio;

  // zeroshard's own keys, under "zeroshard".
  enum class Reduction : uint8_t { kCanonical, kNative };
  Reduction reduction = Reduction::kCanonical;
  enum class Transport : uint8_t { kAuto, kShm, kProcessGroup };
  Transport transport = Transport::kAuto;
  std::vector<std::string> unit_classes;  // module classes that become units; empty: zeroshard chooses the modules
  std::vector<PlacementRule> placement;   // rules that shard or replicate single units at stage 3
  bool shard_one_rank = false;            // true: a single rank gathers and reduces like several ranks do
  int64_t timeout_ms = 600'000;           // a collective fails after this time without progress
  int64_t stall_timeout_ms = 10'000;      // a peer fails after this time if its process is stopped (not merely slow)
  int max_skipped_steps = 50;             // the run ends after this many steps in a row whose gradients were not finite
  int check_replicas_every = 0;           // steps between comparisons of replicated parameters; 0: never
  // The dtype in which the optimizer's moments are stored: fp32; bf16, to which each update rounds them at random, but
  // not on a GPU; or kCodes.
  DType moment_dtype = DType::kFloat32;
  OffloadConfig offload;
  CheckpointConfig checkpoint;
  MetricFilesConfig tensorboard, csv_monitor;
  WandbConfig wandb;

  // Returns the number of ranks that shard one copy of the parameters. Below stage 3 parameters are whole, so groups
  // that share the states are one group.
  int shard_ranks() const { return shard_size > 0 && (!groups_share_states || stage == 3) ? shard_size : world_size; }
  // Returns whether several groups of shard_ranks() ranks share one copy of the optimizer states.
  bool shares_states() const { return groups_share_states && shard_ranks() < world_size; }
  // Returns the dtype of reduced gradients in a step of `micro_batches` micro-batches, or nothing, which means the
  // communication dtype. Sums over several micro-batches are fp32 unless grad_accum_dtype says otherwise, because 16
  // bits lose small contributions.
  std::optional<DType> reduced_grad_dtype(int64_t micro_batches) const {
    const bool may_be_several = micro_batches > 1 || !managed_accumulation;
    return !grad_accum_dtype && may_be_several ? DType::kFloat32 : grad_accum_dtype;
  }
  // Returns a hash of all values that must be equal on every rank.
  uint64_t digest() const;
};

// A resolved value and its origin, for `zeroshard config explain`.
struct ConfigValue {
  std::string path;    // "zero_optimization.stage"
  std::string value;   // as JSON
  std::string origin;  // for example "file", "default", "auto: ..." or "derived: train_batch_size / ..."
};

struct ParsedConfig {
  Config config;
  std::vector<ConfigValue> values;          // all keys that have an effect, in the order of the table of keys
  std::vector<std::string> without_effect;  // keys of the text that zeroshard knows but that have no effect here
  // Values given as "auto" whose default can surprise the user, each with the value that it got.
  std::vector<std::string> assumed;
  std::vector<std::string> open;     // keys that stay "auto" because the context does not decide them
  std::vector<std::string> unknown;  // ignored unknown keys at the top level, each with the nearest known key

  // Returns one log line about the unknown keys, or "" if there are none.
  std::string warning() const;
};

// Values for parse_config() that the JSON text does not contain.
struct ConfigContext {
  int world_size = 1;
  int ranks_per_host = 0;  // 0: not known, or not the same on all hosts
  // The size of the caller's sequence groups, if it has set up any. The text must have the same value, "auto" or none.
  std::optional<int> sequence_parallel_size;
  std::optional<int64_t> hidden_size;
  // The micro-batch size if the text gives no batch size. If this is unset, too, parse_config() throws, as DeepSpeed
  // does.
  std::optional<int64_t> default_micro_batch_size;
  std::optional<int> stage;  // replaces the text's zero_optimization.stage
  // true: values that stay "auto" and missing batch sizes are not errors, because Trainer or accelerate fills them in
  // later. The Config then holds their defaults, so that `zeroshard config explain` can show them.
  bool leave_open = false;
};

// Parses JSON text, which can contain comments and trailing commas. Ignores unknown keys at the top level, as DeepSpeed
// does, and lists them in the result. Throws ConfigError with the JSON path, the value, the allowed values and the
// nearest known key.
ParsedConfig parse_config(std::string_view json, const ConfigContext& context = {});
// Reads the file `path` and parses its text. Errors name the file.
ParsedConfig load_config(const std::string& path, const ConfigContext& context = {});

// A key that a configuration can contain.
struct ConfigKey {
  enum class Effect : uint8_t { kYes, kNone, kUnsupported };
  std::string path;
  std::string only_for;       // the optimizer or scheduler type that has this parameter; empty: any
  std::string allowed;        // in words; for unsupported keys, the values that switch the feature off
  std::string default_value;  // as JSON, or "required"
  Effect effect;
  std::string help;  // what the key does, why it has no effect, or what is not supported
  std::vector<std::string> aliases;
};
std::vector<ConfigKey> config_keys();

}  // namespace zeroshard
