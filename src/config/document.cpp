#include "config/document.h"

#include <algorithm>

#include "base/format.h"
#include "base/shown_text.h"
#include "zeroshard/error.h"

namespace zeroshard {
namespace {

// Blocks whose allowed keys depend on the type of the optimizer or scheduler. Their keys are checked when the type is
// known.
constexpr const char* kOpenBlocks[] = {"optimizer.params", "scheduler.params"};

std::string join(const std::string& block, const std::string& name) {
  return block.empty() ? name : block + "." + name;
}

bool is_below(const std::string& path, const std::string& block) {
  return path.size() > block.size() && path.starts_with(block) && path[block.size()] == '.';
}

bool in_open_block(const std::string& path) {
  for (const char* block : kOpenBlocks) {
    if (is_below(path, block)) return true;
  }
  return false;
}

}  // namespace

Document::Document(const Json& root, std::span<const Key> keys) {
  for (const Key& key : keys) {
    canonical_[key.path] = key.path;
    for (const std::string& alias : key.aliases) canonical_[alias] = key.path;
    for (size_t dot = key.path.find('.'); dot != key.path.npos; dot = key.path.find('.', dot + 1)) {
      blocks_.insert(key.path.substr(0, dot));
    }
  }
  blocks_.insert(std::begin(kOpenBlocks), std::end(kOpenBlocks));
  known_.assign(blocks_.begin(), blocks_.end());
  for (const auto& [name, canonical] : canonical_) known_.push_back(name);
  if (!root.is_object()) throw ConfigError(concat("the configuration must be an object {...}, got ", shown(root)));
  for (const auto& [name, value] : root.items()) {
    // Flat keys come last, because the nested form of a key overrides the flat form, whichever comes first in the file.
    if (name.find('.') == name.npos) walk_top_level(name == "bfloat16" ? "bf16" : name, value, /*flat=*/false);
  }
  for (const auto& [name, value] : root.items()) {
    if (name.find('.') != name.npos) walk_top_level(name, value, /*flat=*/true);
  }
}

void Document::walk_top_level(const std::string& path, const Json& value, bool flat) {
  if (canonical_.contains(path) || in_open_block(path) || is_block(path)) return walk(path, value, flat);
  ignored_.note(path, value, known_);
}

bool Document::is_block(const std::string& path) const {
  return blocks_.contains(path);
}

void Document::walk(const std::string& path, const Json& value, bool flat) {
  if (canonical_.contains(path) || in_open_block(path)) return add(path, value, flat);
  if (!is_block(path)) return refused_.note(path, value, known_);
  if (value.is_null()) return;
  if (path == "zero_optimization" && value.is_boolean()) {
    return add(path + ".stage", value.get<bool>() ? 1 : 0, flat);
  }
  if (!value.is_object()) fail_value(path, value, "must be an object {...}");
  for (const auto& [name, item] : value.items()) walk(join(path, name), item, flat);
}

namespace {

// Converts 0 and 1 as values of "enabled" to false and true, at any depth of a block. The table has some blocks as one
// key, and does not have the keys inside them, so nothing else converts these values.
Json with_switches(Json block) {
  for (auto& [name, item] : block.items()) {
    if (item.is_structured()) item = with_switches(std::move(item));
    if (name == "enabled" && block.is_object()) item = truth(item);
  }
  return block;
}

}  // namespace

void Document::add(const std::string& path, const Json& value, bool flat) {
  const auto known = canonical_.find(path);
  const std::string& canonical = known == canonical_.end() ? path : known->second;
  const auto [entry, is_new] = given_.try_emplace(
      canonical, Given{value.is_structured() ? with_switches(value) : value, canonical == path ? "" : path});
  if (is_new) {
    if (flat) flat_.insert(canonical);
  } else if (flat && !flat_.contains(canonical)) {
    overridden_.push_back(path);
  } else {
    const std::string& first = entry->second.written_as.empty() ? canonical : entry->second.written_as;
    throw ConfigError(concat(shown_text(path), ": this key is given twice",
                             first == path ? "" : ", also as '" + shown_text(first) + "'"));
  }
}

void Document::refuse_unknown() const {
  refused_.refuse(" `zeroshard config keys` lists all");
}

const Given* Document::find(const std::string& path) const {
  const auto found = given_.find(path);
  return found == given_.end() ? nullptr : &found->second;
}

bool Document::has_block(const std::string& block) const {
  const auto next = given_.lower_bound(block + ".");
  return next != given_.end() && is_below(next->first, block);
}

void Document::check_block(const std::string& block, std::span<const Key> keys) {
  std::vector<std::string> known;
  std::string names;
  for (const Key& key : keys) {
    if (!is_below(key.path, block)) continue;
    known.push_back(key.path);
    names += (names.empty() ? "" : ", ") + key.path.substr(block.size() + 1);
  }
  for (const auto& [path, given] : given_) {
    if (!is_below(path, block) || std::find(known.begin(), known.end(), path) != known.end()) continue;
    refused_.note(path, given.value, known, " allowed here: " + names);
  }
}

}  // namespace zeroshard
