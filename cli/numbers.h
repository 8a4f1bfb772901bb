#pragma once
#include <functional>
#include <limits>
#include <optional>
#include <string>

#include "launch/limits.h"

namespace CLI {
class App;
}

// Options that hold numbers. Their values are read here, not by CLI11: the messages about wrong ones are ours, with the
// option's name, its value and what is expected.
namespace zeroshard::cli {

struct IntRange {
  int min = 0, max = std::numeric_limits<int>::max();
};

inline constexpr IntRange kRanksPerHost{.min = 1, .max = kMaxRanksPerHost};

// Throws ValueError.
int parse_int(const std::string& option, const std::string& text, IntRange range);

// Adds an option of which `set` gets the value. Parsing the command line throws ValueError when it is out of `range`.
void add_int(CLI::App& app, const std::string& names, IntRange range, std::function<void(int)> set,
             const std::string& help);

// The same with a variable, which must live as long as `app`.
template <typename Value>
void add_int(CLI::App& app, const std::string& names, IntRange range, Value& value, const std::string& help) {
  add_int(
      app, names, range, [&value](int given) { value = given; }, help);
}

// At least 0, and finite.
void add_seconds(CLI::App& app, const std::string& names, double& value, const std::string& help);

}  // namespace zeroshard::cli
