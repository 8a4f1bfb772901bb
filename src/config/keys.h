#pragma once
#include <span>
#include <string_view>
#include <vector>

#include "config/key.h"

// The table of known keys, with one function for each area. Most defaults of DeepSpeed's keys are those in DeepSpeed's
// code, even if DeepSpeed's documentation says something else.
namespace zeroshard {

std::vector<Key> training_keys();  // batch, precision, gradients, optimizer.type, scheduler.type
std::vector<Key> zero_keys();      // zero_optimization
std::vector<Key> metrics_keys();   // tensorboard, csv_monitor, wandb
std::vector<Key> own_keys();       // zeroshard
// Returns the keys that belong to none of the areas above. Most are keys of features that zeroshard lacks or implements
// in another way. Only sequence_parallel_size and some keys of "aio" have an effect.
std::vector<Key> keys_of_other_parts();
std::vector<Key> always_known_keys();  // all of the above

// Returns "Adam", "AdamW", ..., in the order of OptimizerConfig::Type.
std::span<const std::string_view> optimizer_names();
// Returns the optimizers that DeepSpeed has and zeroshard lacks.
std::span<const std::string_view> unsupported_optimizer_names();
std::vector<Key> optimizer_keys(OptimizerConfig::Type type);

// Returns "WarmupLR", ..., in the order of SchedulerConfig's alternatives.
std::span<const std::string_view> scheduler_names();
SchedulerConfig make_scheduler(size_t index);
std::vector<Key> scheduler_keys(size_t index);

}  // namespace zeroshard
