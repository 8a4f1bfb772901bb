#include <map>
#include <set>

#include "base/format.h"
#include "config/keys.h"
#include "support.h"

namespace zeroshard {
namespace {

std::vector<Key> every_key() {
  std::vector<Key> keys = always_known_keys();
  for (size_t i = 0; i < optimizer_names().size(); ++i) {
    for (Key& key : optimizer_keys(OptimizerConfig::Type(i))) keys.push_back(std::move(key));
  }
  for (size_t i = 0; i < scheduler_names().size(); ++i) {
    for (Key& key : scheduler_keys(i)) keys.push_back(std::move(key));
  }
  return keys;
}

TEST(KeyTable, DefaultsAreAllowed) {
  for (const Key& key : every_key()) {
    if (key.default_value.is_null()) continue;
    EXPECT_NO_THROW(check_value(key, key.default_value)) << key.path;
  }
}

TEST(KeyTable, EveryRowIsExplained) {
  for (const Key& key : every_key()) {
    EXPECT_NE(key.help, "") << key.path;
    EXPECT_NE(describe(key.allowed), "") << key.path;
  }
}

TEST(KeyTable, PathsAndAliasesAreUnique) {
  std::set<std::string> names;
  for (const Key& key : always_known_keys()) {
    EXPECT_TRUE(names.insert(key.path).second) << key.path;
    for (const std::string& alias : key.aliases) EXPECT_TRUE(names.insert(alias).second) << alias;
  }
}

// The rows whose values meet outside of the table, and those of Python alone.
TEST(KeyTable, OnlyFewRowsWithAnEffectAreAppliedElsewhere) {
  std::set<std::string> elsewhere;
  for (const Key& key : every_key()) {
    if (key.effect == Key::Effect::kYes && !key.apply) elsewhere.insert(key.path);
  }
  EXPECT_EQ(elsewhere,
            (std::set<std::string>{"train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps",
                                   "prescale_gradients", "optimizer.type", "scheduler.type",
                                   "zero_optimization.stage3_max_live_parameters",
                                   "zero_optimization.leaf_module.classes", "zero_optimization.leaf_module.names",
                                   "zero_optimization.leaf_module.name_suffixes", "torch_autocast.enabled",
                                   "torch_autocast.dtype", "data_types.buffer_dtype", "data_types.keep_in_fp32_modules",
                                   "zero_optimization.zero_hpz_partition_size", "zero_optimization.mics_shard_size"}));
}

// A default in the table that differs from the field's initial value would make Config{} and configuration("{}")
// differ.
TEST(KeyTable, DefaultsAreTheFieldsInitialValues) {
  for (size_t i = 0; i < optimizer_names().size(); ++i) {
    const Config config = configuration(concat(R"({"optimizer": {"type": ")", optimizer_names()[i], R"("}})")).config;
    EXPECT_EQ(size_t(config.optimizer->type), i);
  }
  EXPECT_EQ(configuration("{}").config.digest(), Config{}.digest());
}

TEST(KeyTable, PublicListHasEveryRow) {
  EXPECT_EQ(config_keys().size(), every_key().size());
}

}  // namespace
}  // namespace zeroshard
