#pragma once
#include <string>
#include <vector>

#include "config/json_text.h"

namespace zeroshard {

// Collects the keys of a file that nothing reads, so that one message names all of them, each with the nearest known
// key.
class UnknownKeys {
 public:
  // Notes the key `path`. `known` are the full paths of the known keys. `allowed` is empty, or a text like " allowed
  // here: a, b", which the message adds to this key.
  void note(const std::string& path, const Json& value, const std::vector<std::string>& known,
            const std::string& allowed = "");

  // If any key was noted, throws one ConfigError that names all of them. `list` is the end of the message, which says
  // where all known keys are listed.
  void refuse(const std::string& list) const;
  // Returns a line for each noted key, with the key, its value, and the nearest known key.
  std::vector<std::string> lines() const;
  // Returns a hint for an error. It names the noted keys that look like a known key, because one of them might be the
  // cause.
  std::string advice() const;

 private:
  struct UnknownKey {
    std::string given, nearest, allowed;  // for example "stge = 3", " did you mean 'stage'?", " allowed here: ..."
  };
  std::vector<UnknownKey> first_;
  size_t count_ = 0;  // first_ has a limited number, because a hostile file could have thousands of keys
};

}  // namespace zeroshard
