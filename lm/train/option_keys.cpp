#include "train/option_keys.h"

#include <algorithm>
#include <string>
#include <vector>

#include "config/unknown_keys.h"
#include "zeroshard/config.h"

namespace zeroshard {
namespace {

struct Block {
  std::string path;
  std::vector<std::string> keys;
};

const std::vector<Block>& blocks() {
  static const std::vector<Block> all = {
      {"train",
       {"model", "output", "from_scratch", "seed", "steps", "epochs", "data", "evaluation", "checkpoints",
        "activation_checkpointing", "samples", "freeze", "lora", "export_dtype", "log_every", "device"}},
      {"train.data", {"train", "validation", "validation_share", "length", "packing", "shuffle", "text"}},
      {"train.data.text", {"format", "field", "template", "append_eos", "separator"}},
      {"train.evaluation", {"every", "rows", "patience"}},
      {"train.checkpoints", {"every", "folder"}},
      {"train.activation_checkpointing", {"every"}},
      {"train.samples", {"prompts", "tokens"}},
      {"train.lora", {"adapter", "merge", "r", "alpha", "dropout", "use_rslora", "target_modules"}},
  };
  return all;
}

// Returns the paths of all known keys, for suggestions. Keys outside of "train" are included, because a user can put
// one of them inside "train" by mistake.
std::vector<std::string> known_paths() {
  std::vector<std::string> known;
  for (const Block& block : blocks())
    for (const std::string& key : block.keys) known.push_back(block.path + "." + key);
  for (const ConfigKey& key : config_keys()) known.push_back(key.path);
  return known;
}

std::string allowed_in(const Block& block) {
  std::string text;
  for (const std::string& key : block.keys) text += (text.empty() ? " allowed here: " : ", ") + key;
  return text;
}

// Returns the JSON object at `path`, which begins with "train". Returns null if nothing is there, or something that is
// no object.
const Json* object_at(const Json& train, const std::string& path) {
  const Json* object = &train;
  for (size_t dot = path.find('.'); dot != path.npos && object->is_object(); dot = path.find('.', dot + 1)) {
    const std::string name = path.substr(dot + 1, path.find('.', dot + 1) - dot - 1);
    const auto found = object->find(name);
    if (found == object->end()) return nullptr;
    object = &*found;
  }
  return object->is_object() ? object : nullptr;
}

}  // namespace

void refuse_unknown_options(const Json& train) {
  const std::vector<std::string> known = known_paths();
  UnknownKeys unknown;
  for (const Block& block : blocks()) {
    const Json* const object = object_at(train, block.path);
    if (object == nullptr) continue;
    for (const auto& [name, value] : object->items()) {
      if (std::find(block.keys.begin(), block.keys.end(), name) == block.keys.end())
        unknown.note(block.path + "." + name, value, known, allowed_in(block));
    }
  }
  unknown.refuse("");
}

}  // namespace zeroshard
