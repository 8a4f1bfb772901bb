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
  std::string written_as;  // the path as written in the file, if it is not the canonical one
};

// The file's values by path. Aliases, the boolean form of zero_optimization and flat keys such as
// "zero_optimization.stage" are translated here. Keys that are not in the table are collected. Unknown keys at the top
// level are ignored, like in DeepSpeed. Unknown keys inside a block are refused together.
class Document {
 public:
  // Throws ConfigError for keys given under two names and for a value that should be an object.
  Document(const Json& root, std::span<const Key> keys);

  const Given* find(const std::string& path) const;
  // Returns whether any key below this block is given.
  bool has_block(const std::string& block) const;
  // Records the keys below `block` that are given but not among `keys`.
  void check_block(const std::string& block, std::span<const Key> keys);
  // Throws one ConfigError that names all unknown keys inside the blocks checked so far, if there are any.
  void refuse_unknown() const;

  // Returns a line for each unknown key at the top level: the key, its value, and the nearest known key.
  std::vector<std::string> ignored() const { return ignored_.lines(); }
  // Returns a hint for an error: the ignored keys that look like a known key, because one of them may be the cause.
  std::string advice_on_ignored() const { return ignored_.advice(); }

  // Flat keys that the nested form of the same key has overridden.
  const std::vector<std::string>& overridden() const { return overridden_; }

 private:
  void walk(const std::string& path, const Json& value, bool flat);
  void add(const std::string& path, const Json& value, bool flat);
  void walk_top_level(const std::string& path, const Json& value, bool flat);
  bool is_block(const std::string& path) const;

  std::map<std::string, std::string> canonical_;  // maps paths and aliases to paths
  std::set<std::string> blocks_;
  std::vector<std::string> known_;  // paths and aliases
  std::map<std::string, Given> given_;
  std::set<std::string> flat_;  // keys of given_ that were written flat
  std::vector<std::string> overridden_;
  UnknownKeys ignored_, refused_;
};

}  // namespace zeroshard
