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

// Settings of loss scaling. `enabled` says only that losses are scaled. The parameters' dtype is Config::compute_dtype,
// which need not be fp16, because autocast to fp16 also uses loss scaling.
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

// The settings that only Muon's param groups have.
struct MuonOptions {
  bool use_muon = false;  // true: Muon updates this group's matrices; false: AdamW updates the group
  // true: DeepSpeed's "gram" variant of the Newton-Schulz iteration, which works on X X^T if the matrix X is not
  // square. false: the variant of torch.optim.Muon. ns_steps is the number of iterations. ns_a, ns_b and ns_c are the
  // coefficients.
  bool ns_gram = false;
  double ns_steps = 5, ns_a = 3.4445, ns_b = -4.7750, ns_c = 2.0315;
  // If rate_by_rms is true, Muon scales the learning rate of an m x n matrix by 0.2 sqrt(max(m, n)). If only
  // rate_by_rows is true, Muon scales the rate by sqrt(max(1, m / n)). If both are false, Muon does not scale the rate.
  bool rate_by_rows = true, rate_by_rms = false;
};

// The settings that a param group of any optimizer can have.
struct CommonOptions {
  double lr = 1e-3;
  double weight_decay = 0;
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8;  // betas: Adam, AdamW and Lion; eps: Adam, AdamW, Adagrad and Muon
  double momentum = 0, dampening = 0;             // for SGD; Muon uses momentum, too
  double lr_decay = 0;                            // for Adagrad
  bool nesterov = false, maximize = false, bias_correction = true;
  bool decoupled_weight_decay = true;  // for Adam; true: weight decay as in AdamW
};

// The hyper-parameters of one param group. Every step reads them again, so they may change between steps. An optimizer
// ignores the fields that it does not use.
struct ParamGroupOptions : CommonOptions, MuonOptions {
  // Calls visit(name, member) once per field, in the order of this list. `member` is a pointer to member.
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

  // Return the options of Muon's two param groups: the matrices, and all other parameters.
  ParamGroupOptions of_matrices() const;
  ParamGroupOptions of_others() const;
};

// A value of a schedule. Either all param groups have the same value, or each has its own.
struct PerGroup {
  PerGroup(double value) : all(value) {}  // NOLINT(google-explicit-constructor): most schedules have one number
  explicit PerGroup(std::vector<double> values) : each(std::move(values)) {}
  bool operator==(const PerGroup&) const = default;
  double of(size_t group) const { return each.empty() ? all : each.at(group); }

  double all = 0;
  std::vector<double> each;  // values of the param groups; if not empty, they replace `all`
};

// LR schedules with DeepSpeed's formulas and defaults. If `warmup_max_lr` is unset, the rate of each param group rises
// to the group's own lr.
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
  int keep = 0;       // number of newest checkpoints to keep; 0: all
  enum class OnError : uint8_t { kRaise, kWarn };
  OnError on_error = OnError::kRaise;  // what happens after a background save has failed
};

// Settings of metric files ("tensorboard", "csv_monitor"). Engines in Python write the files, on rank 0, to
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

// The tier on which a run keeps some kind of state: kNone is the device, kCpu the host's memory, and kNvme files. With
// kAuto the engine tries the other values in their order, kNvme only if there is an nvme_path. The engine chooses the
// first value with which the run fits into the memory limits of its ranks. If a rank trains on the CPU, kCpu changes
// nothing, because everything is in host memory already.
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

// "zero_optimization.offload_optimizer": the tier of master weights and moments. OffloadConfig::gradients says whether
// reduced gradients are on the same tier.
struct OffloadOptimizerConfig {
  using Device = OffloadDevice;
  Device device = Device::kNone;
  double ratio = 1;  // share of each unit's states that is offloaded; the device keeps and updates the rest
  std::vector<std::string> nvme_path;  // directories of swap files; with kNvme at least one
  int buffer_count = 4;                // with kNvme: chunks of states that are in memory at one time
  bool pin_memory = true;              // use page-locked host memory, which a GPU can copy to and from directly
};

// "zero_optimization.offload_param": the tier of parameter shards at stage 3.
struct OffloadParamConfig {
  using Device = OffloadDevice;
  Device device = Device::kNone;
  bool pin_memory = true;              // use page-locked host memory, which a GPU can copy from directly
  std::vector<std::string> nvme_path;  // directories of swap files; with kNvme at least one
  // With kNvme, shards pass through buffers in host memory. There are buffer_count buffers of at most buffer_numel
  // elements.
  int buffer_count = 5;
  int64_t buffer_numel = 100'000'000;
  int64_t max_in_memory = 1'000'000'000;  // with kNvme: largest number of elements that a rank keeps in memory
};

// "zeroshard.offload": memory limits of one rank in bytes, and the tiers of reduced gradients and of activation
// checkpoints.
struct OffloadConfig {
  enum class Gradients : uint8_t { kAuto, kDevice, kCpu, kNvme };
  enum class Activations : uint8_t { kNone, kCpu, kNvme };
  // An unset host_memory means an equal share of the host's memory for each rank of the host. An unset device_memory
  // means the memory of the GPU. If a rank trains on the CPU, both members limit the same memory, and the smaller value
  // counts.
  std::optional<int64_t> device_memory, host_memory;
  bool verify = true;  // true: compare everything that is read from swap files with its checksum
  // The tier of reduced gradients. kNvme means swap files, as for the states. If a rank trains on the CPU, all other
  // values mean host memory. With a GPU, kAuto means the host if all states are offloaded, else the device.
  Gradients gradients = Gradients::kAuto;
  // The tier of activation checkpoints (the inputs of checkpointed modules) between forward and backward. kNvme: files
  // in the nvme_path of offload_optimizer or, if that is unset, of offload_param. If a rank trains on the CPU, kCpu
  // changes nothing, because everything is in host memory already.
  Activations activations = Activations::kNone;
  // true, only with a GPU: while the host updates parameters with the gradients of one step, the device computes the
  // next step with the parameters from before this update.
  bool delayed_update = false;
};

// "aio": settings of requests to swap files. An unset value means zeroshard's own default.
struct AioConfig {
  std::optional<int64_t> block_size;  // bytes of a request, a multiple of 4096
  // The largest number of requests in flight, and the number of threads, which are used only without io_uring.
  std::optional<int> queue_depth, thread_count;
};

struct Config {
  int64_t train_batch_size = 1, micro_batch_size = 1, grad_accumulation_steps = 1;
  bool managed_accumulation = true;  // false: every step() updates the parameters, after any number of micro-batches
  int world_size = 1;
  int shard_size = 0;  // ranks that shard one copy of the parameters; 0: all
  // true, at stage 3: all groups of shard_size ranks share one copy of the optimizer states. false: each group has a
  // copy.
  bool groups_share_states = false;
  bool quantized_gradients = false;   // true: replicas send each other sums of gradients as 8-bit numbers
  bool quantized_weights = false;     // true: groups that share the states send each other parameters as 8-bit numbers
  int sequence_parallel_size = 1;     // ranks that train on the same rows; without effect on how parameters are sharded
  double gradient_clipping = 1;       // largest gradient norm; 0: no clipping. 1 is DeepSpeed's default since 0.19.3
  int64_t steps_per_print = 0;        // 0: never
  bool wall_clock_breakdown = false;  // true: the lines of steps_per_print have the times of forward, backward and step

  DType compute_dtype = DType::kFloat32;  // bf16 or fp16 if the configuration enables it
  Fp16Config fp16;
  bool bf16_auto_cast = false;          // true: cast inputs of forward to bf16, like fp16.auto_cast; only with bf16
  std::optional<DType> autocast_dtype;  // if set, forward runs in torch.autocast with this dtype; for engines in Python
  std::optional<DType> communication_dtype;  // dtype in which ranks send gradients; unset: the compute dtype
  std::optional<DType> grad_accum_dtype;     // dtype of reduced gradients; unset: see reduced_grad_dtype()
  // Gradients are divided by `prescale` before they are summed over ranks. The sum is then multiplied by `prescale`.
  // With average_gradients, the sum is also divided by the number of ranks.
  double prescale = 1;
  bool average_gradients = true;  // key gradient_allreduce_op; true: mean, false: sum

  std::optional<OptimizerConfig> optimizer;  // unset: the caller brings an optimizer
  std::optional<SchedulerConfig> scheduler;
  bool allow_untested_optimizer = false;
  bool dataloader_drop_last = false;

  int stage = 0;
  bool overlap_comm = true;
  int64_t prefetch_numel = 50'000'000;  // 0: no prefetch; any other value: units are gathered before their use
  // At stage 3, units of at most this many elements stay gathered between updates.
  int64_t persistence_threshold = 100'000;
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
  int max_skipped_steps = 50;             // the run fails after this many steps in a row whose gradients are not finite
  int check_replicas_every = 0;           // steps between comparisons of replicated parameters; 0: never
  // The dtype in which the optimizer's moments are stored: fp32, bf16 or kCodes (8 bits). Each update rounds bf16
  // moments stochastically. A GPU cannot update moments in bf16, so bf16 needs moments that are all offloaded.
  DType moment_dtype = DType::kFloat32;
  OffloadConfig offload;
  CheckpointConfig checkpoint;
  MetricFilesConfig tensorboard, csv_monitor;
  WandbConfig wandb;

  // Returns the number of ranks that shard one copy of the parameters: shard_size, or all ranks if that is 0. Below
  // stage 3 parameters are whole on every rank, so groups that share the states count as one group of all ranks.
  int shard_ranks() const { return shard_size > 0 && (!groups_share_states || stage == 3) ? shard_size : world_size; }
  // Returns whether several groups of shard_ranks() ranks share one copy of the optimizer states.
  bool shares_states() const { return groups_share_states && shard_ranks() < world_size; }
  // Returns the dtype of reduced gradients in a step of `micro_batches` micro-batches. It is grad_accum_dtype if that
  // is set. Otherwise it is fp32 for several micro-batches, because sums in 16 bits lose small contributions. For one
  // micro-batch the function then returns nothing, which means the communication dtype. Without managed_accumulation,
  // every step counts as one of several micro-batches.
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
  std::vector<std::string> without_effect;  // known keys of the text that have no effect in this configuration
  // Keys that are "auto" and whose default can surprise the user, each with the value that replaced "auto".
  std::vector<std::string> assumed;
  std::vector<std::string> open;     // keys that stay "auto", because the context has no value for them
  std::vector<std::string> unknown;  // ignored unknown keys at the top level, each with the nearest known key

  // Returns one log line about the unknown keys, or "" if there are none.
  std::string warning() const;
};

// Values for parse_config() that the JSON text does not contain.
struct ConfigContext {
  int world_size = 1;
  int ranks_per_host = 0;  // 0: not known, or not the same on all hosts
  // The size of the sequence groups, if the caller has set up any. The text must then have the same size, or "auto", or
  // no size.
  std::optional<int> sequence_parallel_size;
  std::optional<int64_t> hidden_size;
  // The micro-batch size for a text without any batch size. If it is unset and the text gives no batch size,
  // parse_config() throws, as DeepSpeed does.
  std::optional<int64_t> default_micro_batch_size;
  std::optional<int> stage;  // replaces the text's zero_optimization.stage
  // true: keys that stay "auto" and missing batch sizes are not errors, because transformers' Trainer or accelerate
  // sets these keys later. Until then, the Config holds their defaults, which `zeroshard config explain` shows.
  bool leave_open = false;
};

// Parses JSON text, which can contain comments and trailing commas. Ignores unknown keys at the top level, as DeepSpeed
// does, and lists them in the result. Throws ConfigError for all other errors. The message has the JSON path and the
// value, and, if they help, the allowed values and the nearest known key.
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
