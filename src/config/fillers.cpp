#include "config/fillers.h"

#include <algorithm>
#include <iterator>

#include "base/format.h"

namespace zeroshard {
namespace {

struct Filled {
  const char* path;
  const char* from;
};

// The keys that transformers.integrations.deepspeed.HfTrainerDeepSpeedConfig fills in, and the settings from which it
// takes their values.
constexpr Filled kByTrainer[] = {
    {"train_batch_size", "per_device_train_batch_size x gradient_accumulation_steps x ranks"},
    {"train_micro_batch_size_per_gpu", "per_device_train_batch_size"},
    {"gradient_accumulation_steps", "gradient_accumulation_steps"},
    {"gradient_clipping", "max_grad_norm"},
    {"optimizer.params.lr", "learning_rate"},
    {"optimizer.params.betas", "adam_beta1 and adam_beta2"},
    {"optimizer.params.eps", "adam_epsilon"},
    {"optimizer.params.weight_decay", "weight_decay"},
    {"scheduler.params.warmup_min_lr", "0"},
    {"scheduler.params.warmup_max_lr", "learning_rate"},
    {"scheduler.params.warmup_num_steps", "warmup_steps, or warmup_ratio of all steps"},
    {"scheduler.params.total_num_steps", "the steps of the run"},
    {"fp16.enabled", "fp16"},
    {"bf16.enabled", "bf16"},
    {"checkpoint.use_node_local_storage", "save_on_each_node"},
    {"zero_optimization.reduce_bucket_size", "the hidden size squared"},
    {"zero_optimization.stage3_prefetch_bucket_size", "0.9 x the hidden size squared"},
    {"zero_optimization.stage3_param_persistence_threshold", "10 x the hidden size"},
};

// The keys that accelerate.DeepSpeedPlugin fills in, and the settings from which it takes their values.
constexpr Filled kByAccelerate[] = {
    {"zero_optimization.stage", "zero_stage"},
    {"zero_optimization.offload_optimizer.nvme_path", "offload_optimizer_nvme_path"},
    {"zero_optimization.offload_param.nvme_path", "offload_param_nvme_path"},
    {"zero_optimization.stage3_gather_16bit_weights_on_model_save", "zero3_save_16bit_model"},
};

const Filled* find(const auto& table, const std::string& path) {
  const auto* found = std::ranges::find(table, path, &Filled::path);
  return found == std::end(table) ? nullptr : found;
}

}  // namespace

std::string filler_of(const std::string& path) {
  if (const Filled* filled = find(kByTrainer, path)) return concat("transformers' Trainer fills it in: ", filled->from);
  if (const Filled* filled = find(kByAccelerate, path))
    return concat("accelerate's DeepSpeedPlugin fills it in: ", filled->from);
  return "";
}

}  // namespace zeroshard
