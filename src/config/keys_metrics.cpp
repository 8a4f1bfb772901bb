#include "base/format.h"
#include "config/keys.h"

namespace zeroshard {
namespace {

// Adds the keys of the block "tensorboard" or "csv_monitor". Both blocks have the same keys.
template <MetricFilesConfig Config::*Block>
void add_files(std::vector<Key>& keys, const std::string& block, const std::string& files) {
  const auto add = [&](const char* name, Allowed allowed, Json default_value, std::string help, Key::Apply apply) {
    keys.push_back({concat(block, ".", name), std::move(allowed), std::move(default_value), std::move(help),
                    Key::Effect::kYes, std::move(apply)});
  };
  add("enabled", Bool{}, false, concat("rank 0 writes the metrics of each step to ", files),
      [](Config& config, const Json& value) { (config.*Block).enabled = value.get<bool>(); });
  add("output_path", Text{}, "", "folder of the runs; \"\": the working directory",
      [](Config& config, const Json& value) { (config.*Block).output_path = value.get<std::string>(); });
  add("job_name", Text{}, "DeepSpeedJobName", "folder of this run in it",
      [](Config& config, const Json& value) { (config.*Block).job_name = value.get<std::string>(); });
}

}  // namespace

std::vector<Key> metrics_keys() {
  using Effect = Key::Effect;
  std::vector<Key> keys;
  add_files<&Config::tensorboard>(keys, "tensorboard", "event files of TensorBoard");
  add_files<&Config::csv_monitor>(keys, "csv_monitor", "metrics.csv");
  for (Key& key : std::vector<Key>{
           {"wandb.enabled", Bool{}, false, "rank 0 gives the metrics of each step to the package wandb", Effect::kYes,
            [](Config&config, const Json&value) { config.wandb.enabled = value.get<bool>(); }},
           {"wandb.project", Text{}, "deepspeed", "project of Weights & Biases", Effect::kYes,
            [](Config&config, const Json&value) { config.wandb.project = value.get<std::string>(); }},
           {"wandb.team", Text{}, nullptr, "entity of Weights & Biases; unset: the user's own", Effect::kYes,
            [](Config&config, const Json&value) { config.wandb.team = value.get<std::string>(); }},
           {"wandb.group", Text{}, nullptr, "group of runs", Effect::kYes,
            [](Config&config, const Json&value) { config.wandb.group = value.get<std::string>(); }},
       })
    keys.push_back(std::move(key));
  return keys;
}

}  // namespace zeroshard
