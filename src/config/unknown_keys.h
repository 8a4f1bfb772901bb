#pragma once
#include <string>
#include <vector>

#include "config/json_text.h"

namespace zeroshard {

// Collects a file's unknown keys, so that one message names all of them, each with the nearest known key. A message
// names the first 20 keys, and says how many more there are.
class UnknownKeys {
 public:
  // Notes the key `path`. `known` are the full paths of the known keys. `allowed` is empty, or a text like " allowed
  // here: a, b", which the message adds to this key.
  void note(const std::string& path, const Json& value, const std::vector<std::string>& known,
            const std::string& allowed = "");

  // If any key was noted, throws one ConfigError about all of them. `list` says where all known keys are listed. The
  // message contains `list`, unless only one key was noted and the `allowed` of this key is not empty.
  void refuse(const std::string& list) const;
  // Returns a line for each of the first 20 noted keys, with the key, its value, and the nearest known key if one is
  // near. If more keys were noted, one last line says how many more.
  std::vector<std::string> lines() const;
  // Returns a text to add to an error. It names those of the first 20 noted keys that have a near known key, because
  // one of them might be the cause.
  std::string advice() const;

 private:
  struct UnknownKey {
    std::string given, nearest, allowed;  // for example "stge = 3", " did you mean 'stage'?", " allowed here: ..."
  };
  std::vector<UnknownKey> first_;
  size_t count_ = 0;  // of all noted keys; first_ has at most 20, because a hostile file could have thousands
};

}  // namespace zeroshard
