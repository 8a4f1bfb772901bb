#include <algorithm>

#include "base/format.h"
#include "config/keys.h"

namespace zeroshard {
namespace {

// Returns the blocks of features that zeroshard lacks. A block is accepted if nothing in it is enabled.
std::vector<Key> blocks_to_leave_off() {
  std::vector<Key> keys;
  const auto add = [&](const char* path, const char* what) {
    keys.push_back(unsupported(path, NothingEnabled{}, nullptr, concat(what, " is not supported")));
  };
  add("amp", "apex's mixed precision");
  add("elasticity", "elasticity");
  add("autotuning", "autotuning");
  add("hybrid_engine", "the hybrid engine");
  add("nebula", "Nebula");
  add("datastates", "DataStates");
  add("eigenvalue", "eigenvalue computation");
  add("progressive_layer_drop", "progressive layer drop");
  add("curriculum_learning", "curriculum learning");
  add("data_efficiency", "the data efficiency library");
  add("compression_training", "compression");
  add("quantize_training", "quantized training");
  add("weight_quantization", "weight quantization");
  add("expert_parallel", "expert parallelism");
  return keys;
}

std::vector<Key> blocks_about_other_tools() {
  const auto block = [](const char* path, const char* why) { return inert(path, Anything{}, nullptr, why); };
  return {
      block("activation_checkpointing",
            "the model itself recomputes activations, by torch.utils.checkpoint; with transformers call "
            "model.gradient_checkpointing_enable()"),
      block("flops_profiler", "no flops are counted: torch.profiler does it, with with_flops=True"),
      block("comms_logger", "collectives are not logged: torch.profiler shows them"),
      block("comet", "metrics are not sent to Comet; the blocks tensorboard, csv_monitor and wandb write some"),
      block("monitor_config", "give tensorboard, csv_monitor and wandb at the top level"),
      block("timers", "no times are printed: torch.profiler measures them"),
      block("train", "`zeroshard train` reads it, and nothing else does"),
      block("pipeline", "it configures pipeline parallelism, which is not in use"),
  };
}

// Returns the keys that say how files of offloaded state are read and written.
std::vector<Key> aio_keys() {
  using Effect = Key::Effect;
  return {
      {"aio.block_size", Integer{.min = 4096, .max = int64_t{1} << 30}, nullptr,
       "bytes of a request to a swap file, a multiple of 4096; unset: what suits the disk, or 1 MiB where queue_depth "
       "is "
       "set or files are small",
       Effect::kYes, [](Config& config, const Json& value) { config.aio.block_size = value.get<int64_t>(); }},
      {"aio.queue_depth", Integer{.min = 1, .max = 4096}, nullptr,
       "requests under way at most; unset: what suits the disk, or 32 where block_size is set or files are small; for "
       "parameters at least as many as their buffers have blocks",
       Effect::kYes, [](Config& config, const Json& value) { config.aio.queue_depth = value.get<int>(); }},
      {.path = "aio.thread_count",
       .allowed = Integer{.min = 1, .max = 256},
       .default_value = nullptr,
       .help = "threads that read and write where the system refuses io_uring; unset: 4",
       .apply = [](Config& config, const Json& value) { config.aio.thread_count = value.get<int>(); },
       .aliases = {"aio.intra_op_parallelism"}},
      inert("aio.single_submit", Bool{}, false, "requests are submitted together as far as the queue has room"),
      inert("aio.overlap_events", Bool{}, true, "requests are submitted while others are under way"),
      unsupported("aio.use_gds", Only{false}, false, "GPUDirect Storage is not supported"),
  };
}

std::vector<Key> parallelism() {
  std::vector<Key> keys{
      unsupported("tensor_parallel.autotp_size", Integer{.min = 0, .max = 1}, 0, "tensor parallelism is not supported"),
      {.path = "sequence_parallel_size",
       .allowed = Integer{.min = 0, .max = 1 << 20},
       .default_value = 1,
       .help = "neighbouring ranks that train on the same rows, each on its piece of the sequence; a divisor of the "
               "number of ranks. 0 is 1",
       .apply = [](Config& config,
                   const Json& value) { config.sequence_parallel_size = std::max(value.get<int>(), 1); }},
      unsupported("sparse_gradients", Only{false}, false, "sparse gradients are not supported"),
      unsupported("sparse_attention", Only{nullptr}, nullptr, "sparse attention is not supported"),
      unsupported("compile.deepcompile", Only{false}, false, "DeepCompile is not supported; torch.compile is"),
      inert("use_data_before_expert_parallelism", Bool{}, false, "expert parallelism is not in use"),
  };
  for (const char* name :
       {"tp", "dtype", "preset_model", "tp_overlap_comm", "partition_config", "injection_policy_tuple",
        "tensor_parallel", "vocab_parallel_lm_head", "vocab_parallel_ce_backend", "keep_module_on_host",
        "kernel_inject", "replace_with_kernel_inject"}) {
    keys.push_back(inert(concat("tensor_parallel.", name), Anything{}, nullptr, "tensor parallelism is not in use"));
  }
  for (const char* name :
       {"passes", "free_activation", "free_activation_threshold", "offload_activation", "offload_activation_pin_memory",
        "offload_opt_states", "offload_parameters", "double_buffer", "symmetric_memory", "debug_log",
        "sync_before_reduce", "sync_after_reduce", "sync_before_allgather", "sync_after_allgather", "autoep_non_moe",
        "keep_int_input_tensors", "keep_all_input_tensors"}) {
    keys.push_back(inert(concat("compile.", name), Anything{}, nullptr, "DeepCompile is not in use"));
  }
  for (const char* name : {"disable", "backend", "kwargs"}) {
    keys.push_back(
        inert(concat("compile.", name), Anything{}, nullptr, "engine.compile() compiles, with its arguments"));
  }
  return keys;
}

std::vector<Key> checkpoint_keys() {
  return {
      inert("checkpoint.tag_validation", Choice{{"Warn", "Ignore", "Fail"}}, "Warn",
            "ranks that disagree on a tag always fail"),
      inert("checkpoint.load_universal", Bool{}, false, "every checkpoint can be loaded by any number of ranks"),
      unsupported("checkpoint.use_node_local_storage", Only{false}, false,
                  "checkpoints on the storage of single nodes are not supported"),
      inert("checkpoint.parallel_write", Anything{}, nullptr, "every rank always writes its own shards"),
      inert("checkpoint.writer", Anything{}, nullptr, "there is one way of writing checkpoints"),
      inert("checkpoint.checkpoint_serialization", Anything{}, nullptr, "there is one way of writing checkpoints"),
  };
}

std::vector<Key> switches() {
  return {
      inert("memory_breakdown", Bool{}, false,
            "memory is not printed in each step: steps_per_print and engine.memory_report() tell it"),
      inert("dump_state", Bool{}, false,
            "the configuration is not printed: `zeroshard config explain FILE` prints every resolved value"),
      {.path = "seq_parallel_communication_data_type",
       .allowed = Choice{{"fp32", "fp16", "bf16"}},
       .default_value = "fp32",
       .help = "heads are exchanged in their own precision",
       .effect = Key::Effect::kNone,
       .aliases = {"seq_parallel_comm_data_type"}},
      inert("disable_allgather", Bool{}, false, "updated parameters are always gathered"),
      inert("allgather_size", size_in_elements(), 500'000'000, "parameters are gathered unit by unit"),
      inert("graph_harvesting", Bool{}, false,
            "no CUDA graphs are captured: torch.compile with mode=\"reduce-overhead\" captures them"),
      inert("disable_python_gc", Bool{}, false, "the Python garbage collector is left as it is"),
      inert("zero_force_ds_cpu_optimizer", Bool{}, true,
            "updates on the host are zeroshard's own, or those of the optimizer that you bring"),
      inert("vocabulary_size", at_least(0), nullptr, "it serves a warning of DeepSpeed's alone"),
      inert("log_level", Anything{}, nullptr, "ZEROSHARD_LOG_LEVEL in the environment sets it"),
  };
}

}  // namespace

std::vector<Key> keys_of_other_parts() {
  std::vector<Key> keys;
  for (std::vector<Key> part :
       {switches(), checkpoint_keys(), aio_keys(), parallelism(), blocks_to_leave_off(), blocks_about_other_tools()}) {
    for (Key& key : part) keys.push_back(std::move(key));
  }
  return keys;
}

}  // namespace zeroshard
