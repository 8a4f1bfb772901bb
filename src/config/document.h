#pragma once
#include <map>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "config/key.h"
#include "config/unknown_keys.h"

namespace zeroshard {

// A value of the file. It is stored under the canonical path of its key.
struct Given {
  Json value;
  std::string written_as;  // the path in the file, if it differs from the canonical path
};

// The file's values by canonical path. This class translates aliases, the boolean form of zero_optimization, and flat
// keys, which stand at the top level but have the whole path as their name, such as "zero_optimization.stage". It also
// collects unknown keys, which are not in the table. Unknown keys at the top level are ignored, as in DeepSpeed.
// refuse_unknown() refuses unknown keys inside blocks, all in one error.
class Document {
 public:
  // Throws ConfigError if the configuration or a block is not an object, or if a key is given under two names. No error
  // is thrown if the same key is given nested and flat, because the nested one then counts.
  Document(const Json& root, std::span<const Key> keys);

  const Given* find(const std::string& path) const;
  // Returns whether any key below this block is given.
  bool has_block(const std::string& block) const;
  // Records as unknown the keys that are given below `block` but are not in `keys`.
  void check_block(const std::string& block, std::span<const Key> keys);
  // If there are unknown keys inside the blocks checked so far, throws one ConfigError that names them, like
  // UnknownKeys::refuse().
  void refuse_unknown() const;

  // Returns UnknownKeys::lines() of the unknown keys at the top level.
  std::vector<std::string> ignored() const { return ignored_.lines(); }
  // Returns UnknownKeys::advice() of the unknown keys at the top level.
  std::string advice_on_ignored() const { return ignored_.advice(); }

  // Returns the flat keys that the nested form of the same key has overridden.
  const std::vector<std::string>& overridden() const { return overridden_; }

 private:
  void walk(const std::string& path, const Json& value, bool flat);
  void add(const std::string& path, const Json& value, bool flat);
  void walk_top_level(const std::string& path, const Json& value, bool flat);
  bool is_block(const std::string& path) const;

  std::map<std::string, std::string> canonical_;  // maps canonical paths and aliases to canonical paths
  std::set<std::string> blocks_;
  std::vector<std::string> known_;  // blocks, canonical paths and aliases
  std::map<std::string, Given> given_;
  std::set<std::string> flat_;  // canonical paths of the keys that are flat in the file
  std::vector<std::string> overridden_;
  UnknownKeys ignored_, refused_;
};

}  // namespace zeroshard
