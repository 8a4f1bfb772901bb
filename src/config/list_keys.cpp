#include "config/keys.h"

namespace zeroshard {
namespace {

ConfigKey::Effect to_public(Key::Effect effect) {
  switch (effect) {
    case Key::Effect::kNone:
      return ConfigKey::Effect::kNone;
    case Key::Effect::kUnsupported:
      return ConfigKey::Effect::kUnsupported;
    case Key::Effect::kYes:
      break;
  }
  return ConfigKey::Effect::kYes;
}

void list(std::vector<ConfigKey>& listed, const std::vector<Key>& keys, std::string_view only_for) {
  for (const Key& key : keys) {
    listed.push_back({key.path, std::string(only_for), describe(key.allowed),
                      key.required ? "required" : key.default_value.dump(), to_public(key.effect), key.help,
                      key.aliases});
  }
}

}  // namespace

std::vector<ConfigKey> config_keys() {
  std::vector<ConfigKey> listed;
  list(listed, always_known_keys(), "");
  for (size_t i = 0; i < optimizer_names().size(); ++i) {
    list(listed, optimizer_keys(OptimizerConfig::Type(i)), optimizer_names()[i]);
  }
  for (size_t i = 0; i < scheduler_names().size(); ++i) list(listed, scheduler_keys(i), scheduler_names()[i]);
  return listed;
}

}  // namespace zeroshard
