#include "base/format.h"
#include "config/keys.h"

namespace zeroshard {
namespace {

Key zero(std::string name, Allowed allowed, Json default_value, std::string help, Key::Apply apply = {},
         Auto when_auto = Auto::kDefault) {
  Key key{"zero_optimization." + name, std::move(allowed), std::move(default_value), std::move(help)};
  key.apply = std::move(apply);
  key.when_auto = when_auto;
  if (name.starts_with("stage3_")) key.aliases.push_back("zero_optimization." + name.substr(7));
  return key;
}

Key zero_inert(const std::string& name, Allowed allowed, Json default_value, std::string why) {
  Key key = zero(name, std::move(allowed), std::move(default_value), std::move(why));
  key.effect = Key::Effect::kNone;
  return key;
}

Key zero_unsupported(const std::string& name, Allowed neutral, Json default_value, std::string what) {
  Key key = zero(name, std::move(neutral), std::move(default_value), std::move(what));
  key.effect = Key::Effect::kUnsupported;
  return key;
}

OffloadDevice device_of(const Json& value) {
  return value == "cpu"    ? OffloadDevice::kCpu
         : value == "nvme" ? OffloadDevice::kNvme
         : value == "auto" ? OffloadDevice::kAuto
                           : OffloadDevice::kNone;
}

std::vector<std::string> paths_of(const Json& value) {
  return value.is_string() ? std::vector{value.get<std::string>()} : value.get<std::vector<std::string>>();
}

// Assigns `value` to a member of OffloadOptimizerConfig.
template <auto Member>
void set_offload(Config& config, const Json& value) {
  config.offload_optimizer.*Member = value.get<std::remove_cvref_t<decltype(config.offload_optimizer.*Member)>>();
}

std::vector<Key> offload_optimizer() {
  using Offload = OffloadOptimizerConfig;
  const auto set_device = [](Config& config, const Json& value) { config.offload_optimizer.device = device_of(value); };
  const auto set_cpu = [](Config& config, const Json& value) {
    if (value == true && config.offload_optimizer.device == Offload::Device::kNone)
      config.offload_optimizer.device = Offload::Device::kCpu;
  };
  const auto set_paths = [](Config& config, const Json& value) {
    config.offload_optimizer.nvme_path = paths_of(value);
  };
  return {
      zero(
          "offload_optimizer.device", Choice{{"none", "cpu", "nvme", "auto"}}, "none",
          "stages 1 to 3. \"cpu\": master weights, moments and reduced gradients lie in host memory; on ranks whose "
          "device is the CPU they do anyway. \"nvme\": master weights and moments lie in files. \"auto\": the first of "
          "none, cpu and, with an nvme_path, nvme that fits into the memory of each rank",
          set_device),
      zero("cpu_offload", Bool{}, false, "true: as offload_optimizer.device = \"cpu\"", set_cpu),
      zero("offload_optimizer.ratio", Number{.min = 0, .max = 1}, 1.0,
           "the share of each unit's states that leaves the device, in whole blocks of 1024 elements; the device "
           "updates the rest. On ranks whose device is the CPU a share between 0 and 1 is for \"nvme\"",
           set_offload<&Offload::ratio>),
      zero("offload_optimizer.nvme_path", Paths{}, nullptr,
           "the directory, or directories, of the files; required with \"nvme\"", set_paths),
      zero("offload_optimizer.buffer_count", Integer{.min = 1, .max = 1 << 20}, 4,
           "chunks of states in memory at a time, with \"nvme\"", set_offload<&Offload::buffer_count>),
      zero("offload_optimizer.pin_memory", Bool{}, true,
           "GPUs copy to and from host memory by themselves; false: the host waits for each copy",
           set_offload<&Offload::pin_memory>),
  };
}

Key leaf_module(const std::string& name, const std::string& which) {
  return zero("leaf_module." + name, Strings{}, Json::array(),
              concat("Python: each module ", which, " is one unit, with all that it contains"));
}

Key gather_on_save() {
  Key key = zero("stage3_gather_16bit_weights_on_model_save", Bool{}, false,
                 "what the engine says when asked; save_16bit_model gathers in any case",
                 set<&Config::gather_16bit_weights_on_save>);
  key.aliases.push_back("zero_optimization.stage3_gather_fp16_weights_on_model_save");
  return key;
}

std::vector<Key> effective() {
  return {
      zero("stage", Integer{.min = 0, .max = 3}, 0,
           "0 replicates; 1 shards optimizer states, 2 gradients too, 3 parameters too", set<&Config::stage>),
      zero("overlap_comm", Bool{}, nullptr, "communicate while computing; unset: true", set<&Config::overlap_comm>),
      zero("stage3_prefetch_bucket_size", size_in_elements(), 50'000'000,
           "0: units are gathered when they are used; else the next unit is gathered ahead of its use, and several "
           "that are small",
           set<&Config::prefetch_numel>, Auto::kHiddenSquaredTimes09),
      zero("stage3_param_persistence_threshold", size_in_elements(), 100'000,
           "units of at most this many elements are not resharded", set<&Config::persistence_threshold>,
           Auto::kTenHidden),
      zero("stage3_max_live_parameters", size_in_elements(), 1'000'000'000,
           "generate() of transformers keeps parameters gathered over its tokens if they have at most this many "
           "elements; training gathers a unit before its use and reshards it after it"),
      leaf_module("classes", "of these classes, by name or with the name of the Python module in front,"),
      leaf_module("names", "with one of these names in the model"),
      leaf_module("name_suffixes", "whose name in the model ends so"),
      gather_on_save(),
      zero("zero_quantized_gradients", Bool{}, false,
           "the sums of gradients that go between the groups of zeroshard.mesh.shard have 8 bits, with an fp32 scale "
           "for "
           "256 elements. Within a group gradients stay as they are",
           set<&Config::quantized_gradients>),
      zero("zero_quantized_weights", Bool{}, false,
           "if the groups of zeroshard.mesh.shard share the optimizer states, the updated 16-bit parameters that go "
           "between them have 8 bits, with an fp32 scale for 256 elements. Within a group parameters stay as they are",
           set<&Config::quantized_weights>),
      zero("zero_hpz_partition_size", Integer{.min = 0, .max = std::numeric_limits<int>::max()}, 1,
           "hpZ, at stage 3: the same as zeroshard.mesh.shard with \"outer\": \"optimizer\"; 0 or 1: all ranks share "
           "one copy of the parameters"),
      zero("mics_shard_size", Integer{.min = -1, .max = std::numeric_limits<int>::max()}, -1,
           "MiCS: the same as zeroshard.mesh.shard; -1 or 0: all ranks share one copy"),
  };
}

// Assigns `value` to a member of OffloadParamConfig.
template <auto Member>
void set_param(Config& config, const Json& value) {
  config.offload_param.*Member = value.get<std::remove_cvref_t<decltype(config.offload_param.*Member)>>();
}

std::vector<Key> offload_param() {
  using Offload = OffloadParamConfig;
  const auto set_device = [](Config& config, const Json& value) { config.offload_param.device = device_of(value); };
  const auto set_cpu = [](Config& config, const Json& value) {
    if (value == true && config.offload_param.device == Offload::Device::kNone)
      config.offload_param.device = Offload::Device::kCpu;
  };
  const auto set_paths = [](Config& config, const Json& value) { config.offload_param.nvme_path = paths_of(value); };
  return {
      zero("offload_param.device", Choice{{"none", "cpu", "nvme", "auto"}}, "none",
           "stage 3. \"cpu\": the shards of parameters lie in host memory; on ranks whose device is the CPU they do "
           "anyway. \"nvme\": they lie in files. fp32 parameters that a GPU updates, or a part of them, stay there, as "
           "the master weights of their states. \"auto\": they leave where it does not suffice that states do",
           set_device),
      zero("cpu_offload_param", Bool{}, false, "true: as offload_param.device = \"cpu\"", set_cpu),
      zero("offload_param.pin_memory", Bool{}, true,
           "GPUs copy from host memory by themselves; false: the host waits for each copy",
           set_param<&Offload::pin_memory>),
      zero("offload_param.nvme_path", Paths{}, nullptr,
           "the directory, or directories, of the files; required with \"nvme\"", set_paths),
      zero("offload_param.buffer_count", Integer{.min = 1, .max = 1 << 20}, 5,
           "shards in memory on their way from files, with \"nvme\"", set_param<&Offload::buffer_count>),
      zero("offload_param.buffer_size", Integer{.min = 1, .truncate = true}, 100'000'000,
           "elements of each of these at most: a longer shard passes in parts", set_param<&Offload::buffer_numel>),
      zero("offload_param.max_in_cpu", size_in_elements(), 1'000'000'000,
           "elements of a rank's parameters that stay in memory, with \"nvme\"", set_param<&Offload::max_in_memory>),
  };
}

std::vector<Key> without_effect() {
  const std::string kShards = "gradients and parameters are moved as flat shards, one collective per unit";
  const std::string kUnits = "a unit is gathered before its use and resharded after it";
  const std::string kCheckpoints = "a checkpoint has no world size: any number of ranks can load it";
  return {
      zero_inert("contiguous_gradients", Bool{}, true, "gradients are always packed into contiguous buffers"),
      zero_inert("reduce_scatter", Bool{}, true, kShards),
      zero_inert("use_multi_rank_bucket_allreduce", Bool{}, true, kShards),
      zero_inert("allgather_partitions", Bool{}, true, kShards),
      zero_inert("reduce_bucket_size", size_in_elements(), 500'000'000,
                 "a bucket is a unit: its gradients are reduced when its backward is done"),
      zero_inert("allgather_bucket_size", size_in_elements(), 500'000'000, kShards),
      zero_inert("round_robin_gradients", Bool{}, false, kShards),
      zero_inert("parameter_alignment", Bool{}, false, "shards are always aligned"),
      zero_inert("compute_grad_norm", Bool{}, true,
                 "the norm costs one pass that the check for inf and NaN needs anyway"),
      zero_inert("load_from_fp32_weights", Bool{}, true,
                 "a checkpoint holds the fp32 master weights, and they are loaded"),
      zero_inert("elastic_checkpoint", Bool{}, false, kCheckpoints),
      zero_inert("sub_group_size", size_in_elements(), 1'000'000'000, "the optimizer is one pass over the whole shard"),
      zero_inert("stage3_model_persistence_threshold", size_in_elements(), std::numeric_limits<int64_t>::max(), kUnits),
      zero_inert("stage3_max_reuse_distance", size_in_elements(), 1'000'000'000, kUnits),
      zero_inert("stage3_module_granularity_threshold", size_in_elements(), 0, kUnits),
      zero_inert("stage3_use_all_reduce_for_fetch_params", Bool{}, false, kShards),
      zero_inert("stage3_allgather_sequential", Bool{}, false, kShards),
      zero_inert("stage3_partition_stream_chunk_size", size_in_elements(), 0, "parameters are sharded unit by unit"),
      zero_inert("ignore_unused_parameters", Bool{}, true, "parameters without a gradient never stop a step"),
      zero_inert("legacy_stage1", Bool{}, false, "there is one implementation of stage 1"),
      zero_inert("mics_hierarchical_params_gather", Bool{}, false, "a gather of MiCS stays within its group of ranks"),
      zero_inert("memory_efficient_linear", Bool{}, true, "saved tensors are views of the gathered unit at no cost"),
      zero_inert("pipeline_loading_checkpoint", Bool{}, false, kCheckpoints),
      zero_inert("override_module_apply", Bool{}, true, "Module.apply is left as it is"),
      zero_inert("log_trace_cache_warnings", Bool{}, false, "changes of the execution order are always handled"),
      zero_inert("enable_sanity_checks", Bool{}, false, "ranks always compare their sequences of collectives"),
      zero_inert("save_muon_momentum_buffer_in_memory", Bool{}, false,
                 "the momentum is a state like others: it stays where they are"),
      zero_inert("cpu_offload_use_pin_memory", Bool{}, nullptr, "offload_optimizer.pin_memory says it"),
  };
}

std::vector<Key> not_supported() {
  return {
      zero_unsupported(
          "zero_quantized_nontrainable_weights", Only{false}, false,
          "quantized gathers of frozen parameters are not supported: zeroshard.mesh.shard keeps them in a host"),
      zero_unsupported("zeropp_loco_param", Only{nullptr}, nullptr, "rounding errors of gradients are not fed back"),
      zero_unsupported("zenflow", Only{nullptr}, nullptr, "ZenFlow is not supported"),
  };
}

std::vector<Key> offload_details() {
  const std::string kAlwaysOverlaps = "copies always overlap with updates where they can";
  return {
      zero_inert("offload_optimizer.pipeline", Bool{}, false, kAlwaysOverlaps),
      zero_inert("offload_optimizer.pipeline_read", Bool{}, false, kAlwaysOverlaps),
      zero_inert("offload_optimizer.pipeline_write", Bool{}, false, kAlwaysOverlaps),
      zero_inert("offload_optimizer.fast_init", Bool{}, false, "there is one way of initialising states"),
      zero_inert("offload_optimizer.super_offload", Bool{}, false, kAlwaysOverlaps),
      zero_inert("offload_optimizer.cpuadam_cores_perc", Number{.min = 0, .max = 1}, 0.8,
                 "updates on the host run on torch's threads (OMP_NUM_THREADS)"),
      zero_inert("offload_optimizer.convert_grad_on_cpu", Bool{}, true,
                 "gradients leave the device in the dtype in which they were reduced"),
  };
}

}  // namespace

std::vector<Key> zero_keys() {
  std::vector<Key> keys;
  for (std::vector<Key> part :
       {effective(), offload_optimizer(), offload_param(), not_supported(), without_effect(), offload_details()}) {
    for (Key& key : part) keys.push_back(std::move(key));
  }
  return keys;
}

}  // namespace zeroshard
