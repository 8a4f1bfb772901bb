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

// The configuration, resolved: DeepSpeed's JSON keys are translated to these names by parse_config and nowhere else.
namespace zeroshard {

// Loss scaling. Config::compute_dtype says whether parameters are fp16: with autocast to fp16 they are not.
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

// A param group of Muon has these settings beside the common ones.
struct MuonOptions {
  bool use_muon = false;  // whether its matrices are orthogonalised; AdamW updates what is in other groups
  // By products of the smaller side alone (DeepSpeed's "gram"), or as torch.optim.Muon does; with these coefficients.
  bool ns_gram = false;
  double ns_steps = 5, ns_a = 3.4445, ns_b = -4.7750, ns_c = 2.0315;
  // The rate of an m x n matrix is multiplied by sqrt(max(1, m / n)), or by 0.2 sqrt(max(m, n)), or by 1.
  bool rate_by_rows = true, rate_by_rms = false;
};

// A param group of any optimizer has these settings.
struct CommonOptions {
  double lr = 1e-3;
  double weight_decay = 0;
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8;  // Adam, AdamW, Lion
  double momentum = 0, dampening = 0;             // SGD; momentum of Muon, too
  double lr_decay = 0;                            // Adagrad
  bool nesterov = false, maximize = false, bias_correction = true;
  bool decoupled_weight_decay = true;  // Adam: AdamW's weight decay
};

// Hyper-parameters of one param group, read anew at every step. Fields that an optimizer does not have are ignored.
struct ParamGroupOptions : CommonOptions, MuonOptions {
  // Calls visit(name, member) with each field's pointer to member, in this order.
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
  double adam_lr = 3e-4;  // Muon: of what is no matrix; `lr` is that of matrices

  // Muon has two param groups: one of matrices, and one of the other parameters.
  ParamGroupOptions of_matrices() const;
  ParamGroupOptions of_others() const;
};

// A value of a schedule: the same for every param group, or one for each.
struct PerGroup {
  PerGroup(double value) : all(value) {}  // NOLINT(google-explicit-constructor): a number is the common case
  explicit PerGroup(std::vector<double> values) : each(std::move(values)) {}
  bool operator==(const PerGroup&) const = default;
  double of(size_t group) const { return each.empty() ? all : each.at(group); }

  double all = 0;
  std::vector<double> each;  // not empty: instead of `all`
};

// LR schedules with DeepSpeed's formulas and defaults. If `warmup_max_lr` and others are unset: the param group's lr.
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
  bool async = true;  // training continues while a copy of the state is written
  int keep = 0;       // how many of the newest checkpoints stay; 0: all
  enum class OnError : uint8_t { kRaise, kWarn };
  OnError on_error = OnError::kRaise;  // for a save in the background
};

// Where rank 0 of an engine in Python writes metrics: output_path/job_name ("tensorboard", "csv_monitor").
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

// Where something lies in a run. A rank on the CPU has everything in host memory: there, kCpu changes nothing. kAuto:
// an engine chooses the first of the others that fits into the limits of its ranks.
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

// "zero_optimization.offload_optimizer": where master weights, moments and reduced gradients lie.
struct OffloadOptimizerConfig {
  using Device = OffloadDevice;
  Device device = Device::kNone;
  double ratio = 1;                    // share of each unit's states that leaves the device, which updates the rest
  std::vector<std::string> nvme_path;  // directories of swap files; not empty with kNvme
  int buffer_count = 4;                // chunks of states in memory at a time, with kNvme
  bool pin_memory = true;              // host memory that a GPU copies to and from by itself
};

// "zero_optimization.offload_param": where the shards of parameters lie at stage 3.
struct OffloadParamConfig {
  using Device = OffloadDevice;
  Device device = Device::kNone;
  bool pin_memory = true;              // host memory that a GPU copies from by itself
  std::vector<std::string> nvme_path;  // directories of swap files; not empty with kNvme
  // With kNvme: shards in memory on their way, and elements of each of these at most.
  int buffer_count = 5;
  int64_t buffer_numel = 100'000'000;
  int64_t max_in_memory = 1'000'000'000;  // elements of a rank's parameters that stay in memory, with kNvme
};

// "zeroshard.offload": what one rank may hold, in bytes, and where reduced gradients and activation checkpoints lie.
struct OffloadConfig {
  enum class Gradients : uint8_t { kAuto, kDevice, kCpu, kNvme };
  enum class Activations : uint8_t { kNone, kCpu, kNvme };
  // Where the device is the CPU its memory is the host's: both keys limit that, and the smaller one counts. Unset: what
  // the host has is the limit of its ranks together.
  std::optional<int64_t> device_memory, host_memory;
  bool verify = true;  // what is read from swap files is compared with its checksums
  // Where reduced gradients lie. kNvme: in files, as the states. Else, beside a device, kAuto: on the host once the
  // states have left the device; on the CPU all is in host memory.
  Gradients gradients = Gradients::kAuto;
  // Where the inputs of checkpointed parts lie between forward and backward. kNvme: in the nvme_path of
  // offload_optimizer, or else of offload_param. On the CPU all is in host memory: there, kCpu changes nothing.
  Activations activations = Activations::kNone;
  // Beside a device: the host updates while the next step computes with the parameters before.
  bool delayed_update = false;
};

// "aio": the requests to swap files. Unset: zeroshard's own values.
struct AioConfig {
  std::optional<int64_t> block_size;             // bytes of a request, a multiple of 4096
  std::optional<int> queue_depth, thread_count;  // requests under way at most; threads, where io_uring is refused
};

struct Config {
  int64_t train_batch_size = 1, micro_batch_size = 1, grad_accumulation_steps = 1;
  bool managed_accumulation = true;  // false: every step() updates, however many micro-batches came before it
  int world_size = 1;
  int sequence_parallel_size = 1;     // ranks that train on the same rows; shards stay over all ranks
  double gradient_clipping = 1;       // the largest norm; 0: not clipped. DeepSpeed has this default since 0.19.3
  int64_t steps_per_print = 0;        // 0: never
  bool wall_clock_breakdown = false;  // the lines of steps_per_print also tell the time of forward, backward and step

  DType compute_dtype = DType::kFloat32;  // bf16 / fp16 when enabled
  Fp16Config fp16;
  bool bf16_auto_cast = false;               // inputs of forward, as fp16.auto_cast; only with bf16
  std::optional<DType> autocast_dtype;       // forward runs in torch.autocast; for engines in Python
  std::optional<DType> communication_dtype;  // gradients on the wire; unset: the compute dtype
  std::optional<DType> grad_accum_dtype;     // reduced gradients; unset: fp32 while accumulating
  double prescale = 1;                       // gradients are divided by this before the sum, and by the rest after it
  bool average_gradients = true;             // gradient_allreduce_op: mean or sum

  std::optional<OptimizerConfig> optimizer;  // unset: the caller brings one
  std::optional<SchedulerConfig> scheduler;
  bool allow_untested_optimizer = false;
  bool dataloader_drop_last = false;

  int stage = 0;
  bool overlap_comm = true;
  int64_t prefetch_numel = 50'000'000;      // 0: no unit is gathered ahead of its use; else one unit is
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
  std::vector<std::string> unit_classes;  // module classes to shard as units; empty: found automatically
  std::vector<PlacementRule> placement;   // for single units, at stage 3
  bool shard_one_rank = false;            // a world of one gathers and reduces as several ranks do
  int64_t timeout_ms = 600'000;           // a collective that makes no progress for this long fails
  int64_t stall_timeout_ms = 10'000;      // a peer that is stopped (not merely slow) for this long fails
  int max_skipped_steps = 50;             // non-finite steps in a row before the run is ended
  int check_replicas_every = 0;           // steps between comparisons of replicated parameters; 0: never
  // In which the optimizer's moments are stored, in host memory and files alone: fp32; bf16, to which each update
  // rounds them at random; or kCodes.
  DType moment_dtype = DType::kFloat32;
  OffloadConfig offload;
  CheckpointConfig checkpoint;
  MetricFilesConfig tensorboard, csv_monitor;
  WandbConfig wandb;

  // Dtype of reduced gradients in a step with this many micro-batches; unset: the communication dtype. Sums of several
  // are fp32 unless grad_accum_dtype says otherwise, since 16 bits lose small contributions.
  std::optional<DType> reduced_grad_dtype(int64_t micro_batches) const {
    const bool may_be_several = micro_batches > 1 || !managed_accumulation;
    return !grad_accum_dtype && may_be_several ? DType::kFloat32 : grad_accum_dtype;
  }
  // Hash of every value that must agree among ranks.
  uint64_t digest() const;
};

// Where a resolved value came from, for `zeroshard config explain`.
struct ConfigValue {
  std::string path;    // "zero_optimization.stage"
  std::string value;   // as JSON
  std::string origin;  // "file", "default", "auto: ...", "derived: train_batch_size / ..."
};

struct ParsedConfig {
  Config config;
  std::vector<ConfigValue> values;          // every key that has an effect, in the table's order
  std::vector<std::string> without_effect;  // given keys that are understood but have no effect here
  std::vector<std::string> assumed;         // values given as "auto" whose default few want: what they became
  std::vector<std::string> open;            // values that stay "auto", where the context leaves them open
  std::vector<std::string> unknown;         // unknown keys at the top level, which are ignored, with the nearest known

  // One line about the unknown keys, for a log; empty when there are none.
  std::string warning() const;
};

// Values that the text alone does not give. `hidden_size` resolves the "auto" values that depend on it.
struct ConfigContext {
  int world_size = 1;
  std::optional<int> sequence_parallel_size;  // that the caller has set up; the text may repeat it
  std::optional<int64_t> hidden_size;
  // Used when the text gives no batch size; unset: that is an error, as in DeepSpeed.
  std::optional<int64_t> default_micro_batch_size;
  std::optional<int> stage;  // instead of zero_optimization.stage of the text
  // Trainer and accelerate fill in "auto" and sizes of batches. True: such values are no error, and have their
  // defaults in the Config, for explanations.
  bool leave_open = false;
};

// Parses JSON text; comments and trailing commas are allowed. Unknown keys at the top level are ignored and listed, as
// DeepSpeed ignores them. Throws ConfigError with the JSON path, the value, the allowed values and the nearest known
// key.
ParsedConfig parse_config(std::string_view json, const ConfigContext& context = {});
// Reads a file and parses it; errors name the file.
ParsedConfig load_config(const std::string& path, const ConfigContext& context = {});

// One key that may occur in a configuration.
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
