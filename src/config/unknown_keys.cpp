#include "config/unknown_keys.h"

#include "base/format.h"
#include "base/shown_text.h"
#include "base/suggest.h"
#include "zeroshard/error.h"

namespace zeroshard {
namespace {

constexpr size_t kMostTold = 20;

}  // namespace

void UnknownKeys::note(const std::string& path, const Json& value, const std::vector<std::string>& known,
                       const std::string& allowed) {
  if (++count_ > kMostTold) return;
  first_.push_back({concat(shown_text(path), " = ", shown(value)), suggest_path(path, known), allowed});
}

void UnknownKeys::refuse(const std::string& list) const {
  if (first_.empty()) return;
  if (count_ == 1) {
    const auto& [given, nearest, allowed] = first_.front();
    throw ConfigError(concat(given, ": unknown key;", nearest, allowed.empty() ? list : allowed));
  }
  std::string text = concat(count_, " unknown keys;", list);
  for (const auto& [given, nearest, allowed] : first_) {
    const std::string advice = nearest + allowed;
    text += concat("\n  ", given, advice.empty() ? "" : ":", advice);
  }
  if (count_ > first_.size()) text += concat("\n  and ", count_ - first_.size(), " more");
  throw ConfigError(text);
}

std::vector<std::string> UnknownKeys::lines() const {
  std::vector<std::string> lines;
  for (const UnknownKey& key : first_) lines.push_back(key.given + (key.nearest.empty() ? "" : ":" + key.nearest));
  if (count_ > lines.size()) lines.push_back(concat("and ", count_ - lines.size(), " more"));
  return lines;
}

std::string UnknownKeys::advice() const {
  std::string text;
  for (const UnknownKey& key : first_) {
    if (!key.nearest.empty()) text += concat("\n  ", key.given, ": this key is unknown and was ignored;", key.nearest);
  }
  return text;
}

}  // namespace zeroshard
