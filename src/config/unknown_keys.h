#pragma once
#include <string>
#include <vector>

#include "config/json_text.h"

namespace zeroshard {

// Keys of a file that nothing reads, to be told together, with the nearest known one of each.
class UnknownKeys {
 public:
  // `known` are full paths. `allowed` is empty, or " allowed here: a, b": told with this key.
  void note(const std::string& path, const Json& value, const std::vector<std::string>& known,
            const std::string& allowed = "");

  // Throws one ConfigError that names all that were noted, if there are any. `list` says where all known ones are.
  void refuse(const std::string& list) const;
  // A line for each: the key, its value, and the nearest known key.
  std::vector<std::string> lines() const;
  // What to add to an error: those that look like a known key. They may be the cause.
  std::string advice() const;

 private:
  struct UnknownKey {
    std::string given, nearest, allowed;  // "stge = 3", " did you mean 'stage'?", " allowed here: ..."
  };
  std::vector<UnknownKey> first_;
  size_t count_ = 0;  // a hostile file has thousands
};

}  // namespace zeroshard
