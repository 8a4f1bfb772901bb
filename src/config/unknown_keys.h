#pragma once
#include <string>
#include <vector>

#include "config/json_text.h"

namespace zeroshard {

// Collects keys of a file that nothing reads, so that one message names all of them, each with the nearest known key.
class UnknownKeys {
 public:
  // `known` are full paths. `allowed` is empty, or " allowed here: a, b", which the message adds to this key.
  void note(const std::string& path, const Json& value, const std::vector<std::string>& known,
            const std::string& allowed = "");

  // Throws one ConfigError that names all collected keys, if there are any. `list` says where all known keys are
  // listed.
  void refuse(const std::string& list) const;
  // Returns a line for each key: the key, its value, and the nearest known key.
  std::vector<std::string> lines() const;
  // Returns a hint for an error: the keys that look like a known key, because one of them may be the cause.
  std::string advice() const;

 private:
  struct UnknownKey {
    std::string given, nearest, allowed;  // "stge = 3", " did you mean 'stage'?", " allowed here: ..."
  };
  std::vector<UnknownKey> first_;
  size_t count_ = 0;  // first_ is limited, because a hostile file has thousands of keys
};

}  // namespace zeroshard
