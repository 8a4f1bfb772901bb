#pragma once
#include <map>
#include <string>
#include <vector>

#include "base/suggest.h"
#include "zeroshard/error.h"

namespace zeroshard::cli {

// Returns the value for `name`. Throws ValueError if there is none. The message names `option`, all choices, and the
// choice that is most like `name`, if one is similar.
template <typename Value>
const Value& choose(const std::map<std::string, Value>& choices, const std::string& name, const std::string& option) {
  const auto found = choices.find(name);
  if (found != choices.end()) return found->second;
  std::string listed;
  std::vector<std::string> known;
  for (const auto& [key, value] : choices) {
    listed += (listed.empty() ? "" : ", ") + key;
    known.push_back(key);
  }
  throw ValueError(option + " must be one of " + listed + ", got '" + name + "'" + suggest_word(name, known));
}

}  // namespace zeroshard::cli
