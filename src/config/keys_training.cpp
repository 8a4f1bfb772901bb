#include "config/keys.h"

namespace zeroshard {
namespace {

const Number kAnyNumber{};
const Number kNotNegative{.min = 0};
const Choice kCommDTypes{{"fp32", "fp16", "bf16"}};

void append(std::vector<Key>& keys, std::vector<Key> more) {
  for (Key& key : more) keys.push_back(std::move(key));
}

std::vector<Key> batch_keys() {
  // The first three keys have no `apply`, because Resolver::resolve_batch_keys() sets them together.
  return {
      {"train_batch_size", at_least(1), nullptr, "samples of all ranks between two optimizer steps"},
      {"train_micro_batch_size_per_gpu", at_least(1), nullptr, "samples of one rank in one forward"},
      {"gradient_accumulation_steps", at_least(1), nullptr, "micro-batches between two optimizer steps"},
      {"managed_gradient_accumulation", Bool{}, true,
       "false: every engine.step() updates, with the gradients of all backward passes since the last; backward divides "
       "by gradient_accumulation_steps",
       Key::Effect::kYes, set<&Config::managed_accumulation>},
      {.path = "steps_per_print",
       .allowed = Number{.min = 0, .infinite = true},
       .default_value = nullptr,
       .help = "steps between two progress lines; 0 or Infinity: none",
       .apply =
           [](Config& config, const Json& value) {
             const double steps = value.is_number() ? value.get<double>() : 0;
             config.steps_per_print = steps < 9e18 ? int64_t(steps) : 0;
           }},
      {"wall_clock_breakdown", Bool{}, false,
       "the lines of steps_per_print also tell the seconds of forward, backward and step; a device is waited for at "
       "the "
       "ends of each",
       Key::Effect::kYes, set<&Config::wall_clock_breakdown>},
  };
}

Key moment_dtype_key() {
  const auto apply = [](Config& config, const Json& value) {
    config.moment_dtype = value == "int8" ? kCodes : value == "bf16" ? DType::kBFloat16 : DType::kFloat32;
  };
  return {.path = "zeroshard.moment_dtype",
          .allowed = Choice{{"fp32", "bf16", "int8"}},
          .default_value = "fp32",
          .help =
              "in which the optimizer's moments are stored, instead of 4 bytes each. "
              "\"bf16\": in 2 bytes, rounded at random by numbers that depend on parameter, element and step alone. "
              "\"int8\": in 1 byte, with one fp32 scale for each 256 elements of a parameter; parameters below 4,096 "
              "elements keep fp32. Both have other results than fp32. Beside a device, all states must have left "
              "it for bf16, and all or none for int8",
          .apply = apply,
          .aliases = {"zeroshard.offload.moment_dtype"}};
}

std::vector<Key> fp16_keys() {
  using Effect = Key::Effect;
  return {
      {"fp16.enabled", Bool{}, false, "compute in fp16, with fp32 master weights and loss scaling", Effect::kYes,
       [](Config& config, const Json& value) { config.fp16.enabled = value.get<bool>(); }},
      {"fp16.auto_cast", Bool{}, false, "cast floating-point inputs of forward to fp16", Effect::kYes,
       [](Config& config, const Json& value) { config.fp16.auto_cast = value.get<bool>(); }},
      {"fp16.loss_scale", kNotNegative, 0, "a fixed loss scale; 0: dynamic", Effect::kYes,
       [](Config& config, const Json& value) { config.fp16.loss_scale = value.get<double>(); }},
      {"fp16.initial_scale_power", Integer{.min = 0, .max = 127}, 16,
       "the dynamic loss scale starts at 2 to this power", Effect::kYes,
       [](Config& config, const Json& value) { config.fp16.initial_scale_power = value.get<int>(); }},
      {"fp16.loss_scale_window", at_least(1), 1000, "good steps after which the loss scale doubles", Effect::kYes,
       [](Config& config, const Json& value) { config.fp16.loss_scale_window = value.get<int64_t>(); }},
      {"fp16.hysteresis", Integer{.min = 1, .max = 1'000'000}, 2, "overflows before the loss scale is halved",
       Effect::kYes, [](Config& config, const Json& value) { config.fp16.hysteresis = value.get<int>(); }},
      {"fp16.consecutive_hysteresis", Bool{}, false, "a good step refills the hysteresis", Effect::kYes,
       [](Config& config, const Json& value) { config.fp16.consecutive_hysteresis = value.get<bool>(); }},
      {"fp16.min_loss_scale", Number{.min = 0, .above_min = true}, 1, "the dynamic loss scale never goes below",
       Effect::kYes, [](Config& config, const Json& value) { config.fp16.min_loss_scale = value.get<double>(); }},
      unsupported("fp16.fp16_master_weights_and_grads", Only{false}, false,
                  "fp16 master weights are not supported: they are fp32, so that small updates count; "
                  "zero_optimization.offload_optimizer moves them off the device"),
  };
}

std::vector<Key> bf16_keys() {
  const auto compute = [](Config& config, const Json& value) {
    if (value.get<bool>()) config.compute_dtype = DType::kBFloat16;
  };
  return {
      {"bf16.enabled", Bool{}, false, "compute in bf16, with fp32 master weights", Key::Effect::kYes, compute},
      {"bf16.auto_cast", Bool{}, false, "cast floating-point inputs of forward to bf16", Key::Effect::kYes,
       set<&Config::bf16_auto_cast>},
      inert("bf16.immediate_grad_update", Bool{}, false, "gradients are always reduced as soon as they are complete"),
      inert("bf16.check_grad_overflow", Bool{}, true, "gradients are always checked for inf and NaN"),
      unsupported("bf16.bf16_master_weights_and_grads", Only{false}, false,
                  "bf16 master weights are not supported: they are fp32, so that small updates count; "
                  "zero_optimization.offload_optimizer moves them off the device"),
      unsupported("bf16.bf16_optimizer_states", Only{false}, false,
                  "bf16 optimizer states beside bf16 master weights are not supported: "
                  "zeroshard.moment_dtype stores the moments in bf16 beside fp32 master weights"),
  };
}

std::vector<Key> autocast_keys() {
  return {
      {"torch_autocast.enabled", Bool{}, false,
       "Python: engine(...) runs in torch.autocast. Parameters, gradients and states keep the dtype that they have "
       "without it. With fp16 the loss is scaled: by 65536 at first, by half of that after an overflow, by twice that "
       "after "
       "2000 steps without"},
      {"torch_autocast.dtype", Choice{{"bfloat16", "float16", "bf16", "fp16", "half"}}, nullptr,
       "the dtype of torch.autocast; required with torch_autocast.enabled"},
      inert("torch_autocast.lower_precision_safe_modules", Strings{}, nullptr,
            "gradients travel in the dtype of the parameters, or in communication_data_type, whatever their module is"),
  };
}

std::vector<Key> gradient_keys() {
  using Effect = Key::Effect;
  return {
      // The default of 1 is DeepSpeed's since version 0.19.3.
      {"gradient_clipping", kNotNegative, 1.0, "largest global norm of the gradients; 0: no clipping", Effect::kYes,
       set<&Config::gradient_clipping>},
      {"communication_data_type", kCommDTypes, nullptr, "dtype of gradients on the wire; unset: the compute dtype",
       Effect::kYes, [](Config& config, const Json& value) { config.communication_dtype = to_dtype(value); }},
      {"data_types.grad_accum_dtype", kCommDTypes, nullptr,
       "dtype of reduced gradients; unset: fp32 while accumulating, else as on the wire", Effect::kYes,
       [](Config& config, const Json& value) { config.grad_accum_dtype = to_dtype(value); }},
      unsupported("data_types.param_dtype", Only{nullptr}, nullptr,
                  "the dtype of parameters follows fp16.enabled and bf16.enabled"),
      {"data_types.buffer_dtype", kCommDTypes, nullptr,
       "Python: the dtype of floating-point buffers; unset: they keep theirs, but those of BatchNorm get that of the "
       "parameters"},
      {"data_types.keep_in_fp32_modules", Strings{}, nullptr,
       "Python, with fp16 or bf16: buffers are fp32 if one of these patterns fits a part of their name; * is any text. "
       "Unset: what a model of transformers names in _keep_in_fp32_modules_strict, and with fp16 in "
       "_keep_in_fp32_modules"},
      // apply_rules() combines the next two keys. gradient_predivide_factor has no effect if prescale_gradients is
      // true.
      {"prescale_gradients", Bool{}, false, "divide gradients by the world size before the sum instead of after it"},
      {"gradient_predivide_factor", Number{.min = 0, .above_min = true}, 1.0,
       "divide gradients by this before the sum, by the rest after it", Effect::kYes, set<&Config::prescale>},
      {"gradient_allreduce_op", Choice{{"mean", "sum"}}, "mean", "what ranks do to their gradients; sum: stages 0 to 2",
       Effect::kYes, [](Config& config, const Json& value) { config.average_gradients = value == "mean"; }},
      {"zero_allow_untested_optimizer", Bool{}, false, "accept any elementwise optimizer of the caller", Effect::kYes,
       set<&Config::allow_untested_optimizer>},
      {"dataloader_drop_last", Bool{}, false, "drop the last, smaller batch of an epoch", Effect::kYes,
       set<&Config::dataloader_drop_last>},
  };
}

std::vector<Key> type_keys() {
  return {
      {.path = "optimizer.type",
       .allowed = Text{},
       .default_value = nullptr,
       .help = "Adam, AdamW, SGD, Lion, Adagrad or Muon",
       .when_auto = Auto::kRefuse},
      inert("optimizer.legacy_fusion", Bool{}, false, "every optimizer is one pass over the shard"),
      {.path = "scheduler.type",
       .allowed = Text{},
       .default_value = nullptr,
       .help = "WarmupLR, WarmupDecayLR, WarmupCosineLR, OneCycle or LRRangeTest",
       .when_auto = Auto::kRefuse},
  };
}

}  // namespace

std::vector<Key> training_keys() {
  std::vector<Key> keys = batch_keys();
  append(keys, fp16_keys());
  append(keys, bf16_keys());
  append(keys, autocast_keys());
  append(keys, gradient_keys());
  append(keys, type_keys());
  return keys;
}

std::vector<Key> own_keys() {
  using Effect = Key::Effect;
  const auto milliseconds = [](const Json& value) { return int64_t(value.get<double>() * 1000); };
  const Number seconds{.min = 0.001, .max = 1e9};
  return {
      {"zeroshard.reduction", Choice{{"canonical", "native"}}, "canonical",
       "canonical: sums in one order of the ranks, the same bits at every stage; native: the backend's reduce-scatter",
       Effect::kYes,
       [](Config& config, const Json& value) {
         config.reduction = value == "native" ? Config::Reduction::kNative : Config::Reduction::kCanonical;
       }},
      {"zeroshard.transport", Choice{{"auto", "shm", "process_group"}}, "auto",
       "shm: shared memory of one host; process_group: the c10d process group", Effect::kYes,
       [](Config& config, const Json& value) {
         config.transport = value == "shm"             ? Config::Transport::kShm
                            : value == "process_group" ? Config::Transport::kProcessGroup
                                                       : Config::Transport::kAuto;
       }},
      {"zeroshard.unit_classes", Strings{}, Json::array(),
       "module classes to shard as units; empty: found automatically", Effect::kYes, set<&Config::unit_classes>},
      {"zeroshard.placement", Placements{}, Json::array(),
       "where single units' parameters lie at stage 3, which shards those above the persistence threshold. A pattern "
       "is "
       "the last parts of a unit's name: names, numbers, ranges, *",
       Effect::kYes,
       [](Config& config, const Json& value) {
         for (const Json& rule : value)
           config.placement.push_back({rule["units"].get<std::string>(), rule["parameters"] == "replicated"});
       }},
      {"zeroshard.mesh.shard", RanksOrHost{}, nullptr,
       "neighbouring ranks that shard one copy of the parameters among themselves; each group of them holds a replica, "
       "and gathers stay within a group. \"host\": the ranks of a host. Unset: all ranks share one copy",
       Effect::kYes,
       [](Config& config, const Json& value) { config.shard_size = value == "host" ? 0 : value.get<int>(); }},
      {"zeroshard.mesh.outer", Choice{{"replicate", "optimizer"}}, "replicate",
       "what the groups of zeroshard.mesh.shard hold. \"replicate\": each has all states, and groups exchange only "
       "gradients. \"optimizer\", at stage 3: all ranks share one copy of reduced gradients and optimizer states, and "
       "groups send each other the updated parameters once in a step",
       Effect::kYes, [](Config& config, const Json& value) { config.groups_share_states = value == "optimizer"; }},
      {"zeroshard.shard_one_rank", Bool{}, false,
       "one rank gathers parameters and reduces gradients as several do: to try a stage without other ranks",
       Effect::kYes, set<&Config::shard_one_rank>},
      {"zeroshard.offload.device_memory", Amount{}, nullptr,
       "the most that a rank may hold on its device, activations aside. On the CPU that is host memory, and the "
       "smaller "
       "of both limits counts",
       Effect::kYes, [](Config& config, const Json& value) { config.offload.device_memory = value.get<int64_t>(); }},
      {"zeroshard.offload.host_memory", Amount{}, nullptr,
       "the most that a rank may hold in host memory; unset: its ranks together what the host has", Effect::kYes,
       [](Config& config, const Json& value) { config.offload.host_memory = value.get<int64_t>(); }},
      {"zeroshard.offload.verify", Bool{}, true, "what is read from swap files is compared with checksums",
       Effect::kYes, [](Config& config, const Json& value) { config.offload.verify = value.get<bool>(); }},
      {"zeroshard.offload.gradients", Choice{{"auto", "device", "cpu", "nvme"}}, "auto",
       "where reduced gradients, and their sums over micro-batches, lie. \"nvme\": in files, with optimizer states "
       "that are there. Else, beside a device, \"auto\": in host memory once the states have left the device; "
       "\"device\": "
       "they stay there, and the update fetches them; \"cpu\": as auto, but an error where the states stay. Else, on "
       "ranks whose device is the CPU, all is in host memory",
       Effect::kYes,
       [](Config& config, const Json& value) {
         using Gradients = OffloadConfig::Gradients;
         config.offload.gradients = value == "device" ? Gradients::kDevice
                                    : value == "cpu"  ? Gradients::kCpu
                                    : value == "nvme" ? Gradients::kNvme
                                                      : Gradients::kAuto;
       }},
      moment_dtype_key(),
      {"zeroshard.offload.activations", Choice{{"none", "cpu", "nvme"}}, "none",
       "where the inputs of checkpointed layers lie from forward to backward. \"nvme\": in files in "
       "zero_optimization.offload_optimizer.nvme_path, or that of offload_param where it is absent; \"cpu\": in host "
       "memory, as on ranks whose device is the CPU "
       "they "
       "do anyway",
       Effect::kYes,
       [](Config& config, const Json& value) {
         using Activations = OffloadConfig::Activations;
         config.offload.activations = value == "nvme"  ? Activations::kNvme
                                      : value == "cpu" ? Activations::kCpu
                                                       : Activations::kNone;
       }},
      {"zeroshard.offload.delayed_update", Bool{}, false,
       "beside a device, with all optimizer states on the host or in files: the host updates a step's parameters while "
       "the device computes the next step with those before, and they count from the end of that one on. Other "
       "results than without it",
       Effect::kYes, [](Config& config, const Json& value) { config.offload.delayed_update = value.get<bool>(); }},
      {"zeroshard.timeout_s", seconds, 600,
       "a collective without progress for this long fails, and a start without all ranks", Effect::kYes,
       [=](Config& config, const Json& value) { config.timeout_ms = milliseconds(value); }},
      {"zeroshard.stall_timeout_s", seconds, 10, "a peer that is stopped for this long fails the collective",
       Effect::kYes, [=](Config& config, const Json& value) { config.stall_timeout_ms = milliseconds(value); }},
      {"zeroshard.max_skipped_steps", Integer{.min = 0, .max = 1'000'000'000}, 50,
       "non-finite steps in a row before the run ends with an error", Effect::kYes, set<&Config::max_skipped_steps>},
      {"zeroshard.check_replicas_every", Integer{.min = 0, .max = 1'000'000'000}, 0,
       "steps after which the ranks compare the bits of parameters that each holds whole; 0: never", Effect::kYes,
       set<&Config::check_replicas_every>},
      {"zeroshard.checkpoint.async", Bool{}, true,
       "save_checkpoint returns when the state is copied; a thread writes it. For scripts of DeepSpeed only if true is "
       "given",
       Effect::kYes, [](Config& config, const Json& value) { config.checkpoint.async = value.get<bool>(); }},
      {"zeroshard.checkpoint.keep", Integer{.min = 0, .max = 1'000'000}, 0,
       "after a save that many newest checkpoints stay in its directory; 0: all", Effect::kYes,
       [](Config& config, const Json& value) { config.checkpoint.keep = value.get<int>(); }},
      {"zeroshard.checkpoint.on_error", Choice{{"raise", "warn"}}, "raise",
       "what the next step does when a save in the background has failed", Effect::kYes,
       [](Config& config, const Json& value) {
         config.checkpoint.on_error =
             value == "warn" ? CheckpointConfig::OnError::kWarn : CheckpointConfig::OnError::kRaise;
       }},
  };
}

std::vector<Key> always_known_keys() {
  std::vector<Key> keys = training_keys();
  append(keys, zero_keys());
  append(keys, metrics_keys());
  append(keys, own_keys());
  append(keys, keys_of_other_parts());
  return keys;
}

}  // namespace zeroshard
