#include <bit>

#include "zeroshard/config.h"

namespace zeroshard {
namespace {

// Computes the FNV-1a hash of the bytes of values. The hash is the same on all machines and in all builds of one
// version of this file.
class Digest {
 public:
  void add(uint64_t value) {
    for (int i = 0; i < 8; ++i) hash_ = (hash_ ^ ((value >> (8 * i)) & 0xff)) * 0x100000001b3;
  }
  void add(int64_t value) { add(uint64_t(value)); }
  void add(int value) { add(int64_t(value)); }
  void add(bool value) { add(uint64_t(value)); }
  void add(double value) { add(std::bit_cast<uint64_t>(value == 0 ? 0.0 : value)); }  // -0 gets the hash of 0
  void add(const std::string& text) {
    add(uint64_t(text.size()));
    for (const char c : text) add(uint64_t(uint8_t(c)));
  }
  template <typename Enum>
  requires std::is_enum_v<Enum>
  void add(Enum value) { add(uint64_t(value)); }
  void add(const PerGroup& value) {
    all(value.all, uint64_t(value.each.size()));
    for (const double each : value.each) add(each);
  }
  template <typename T>
  void add(const std::optional<T>& value) {
    add(value.has_value());
    if (value) add(*value);
  }
  void add(const Fp16Config& c) {
    all(c.enabled, c.auto_cast, c.loss_scale, c.initial_scale_power, c.loss_scale_window, c.hysteresis,
        c.consecutive_hysteresis, c.min_loss_scale);
  }
  void add(const OptimizerConfig& c) {
    add(c.type);
    add(c.adam_lr);
    ParamGroupOptions::for_each([&](const char*, auto member) { add(c.*member); });
  }
  void add(const WarmupLRConfig& c) { all(c.warmup_min_lr, c.warmup_max_lr, c.warmup_num_steps, c.log_warmup); }
  void add(const WarmupDecayLRConfig& c) {
    all(c.total_num_steps, c.warmup_min_lr, c.warmup_max_lr, c.warmup_num_steps, c.log_warmup);
  }
  void add(const WarmupCosineLRConfig& c) {
    all(c.total_num_steps, c.warmup_min_ratio, c.warmup_num_steps, c.cos_min_ratio, c.log_warmup);
  }
  void add(const OneCycleConfig& c) {
    all(c.cycle_min_lr, c.cycle_max_lr, c.decay_lr_rate, c.cycle_first_step_size, c.cycle_second_step_size,
        c.cycle_first_stair_count, c.cycle_second_stair_count, c.decay_step_size, c.cycle_momentum, c.cycle_min_mom,
        c.cycle_max_mom, c.decay_mom_rate);
  }
  void add(const LRRangeTestConfig& c) { all(c.min_lr, c.step_size, c.step_rate, c.staircase); }
  void add(const SchedulerConfig& scheduler) {
    add(uint64_t(scheduler.index()));
    std::visit([this](const auto& schedule) { add(schedule); }, scheduler);
  }
  template <typename... Values>
  void all(const Values&... values) {
    (add(values), ...);
  }
  uint64_t value() const { return hash_; }

 private:
  uint64_t hash_ = 0xcbf29ce484222325;
};

}  // namespace

// The digest leaves out the keys whose values can differ among ranks without harm. These are steps_per_print,
// wall_clock_breakdown, the two timeouts, the blocks of metrics, and "aio". The digest also
// leaves out some keys about offload: the directories, the sizes and numbers of buffers, `pin_memory` and `verify`.
uint64_t Config::digest() const {
  Digest digest;
  digest.all(train_batch_size, micro_batch_size, grad_accumulation_steps, managed_accumulation, world_size,
             shard_ranks(), shares_states(), sequence_parallel_size, gradient_clipping, quantized_gradients,
             quantized_weights);
  digest.all(compute_dtype, fp16, bf16_auto_cast, autocast_dtype, communication_dtype, grad_accum_dtype, prescale,
             average_gradients);
  digest.all(optimizer, scheduler, allow_untested_optimizer, dataloader_drop_last);
  digest.all(stage, overlap_comm, prefetch_numel, persistence_threshold, gather_16bit_weights_on_save);
  digest.all(reduction, transport, uint64_t(unit_classes.size()), max_skipped_steps, check_replicas_every);
  digest.all(shard_one_rank, offload_optimizer.device, offload_optimizer.ratio, offload_param.device);
  if (offload_param.device == OffloadParamConfig::Device::kNvme) digest.add(offload_param.max_in_memory);
  digest.all(offload.device_memory, offload.host_memory, offload.gradients, offload.activations, moment_dtype,
             offload.delayed_update);
  digest.all(checkpoint.async, checkpoint.keep, checkpoint.on_error);
  for (const std::string& name : unit_classes) digest.add(name);
  digest.add(uint64_t(placement.size()));
  for (const PlacementRule& rule : placement) digest.all(rule.units, rule.replicated);
  return digest.value();
}

}  // namespace zeroshard
