#pragma once
#include <functional>
#include <limits>
#include <optional>
#include <string>

#include "launch/limits.h"

namespace CLI {
class App;
}

// Options with numeric values. They are parsed here, not by CLI11, so that messages about wrong values have the
// option's name, its value and what is expected.
namespace zeroshard::cli {

struct IntRange {
  int min = 0, max = std::numeric_limits<int>::max();
};

inline constexpr IntRange kRanksPerHost{.min = 1, .max = kMaxRanksPerHost};

// Throws ValueError.
int parse_int(const std::string& option, const std::string& text, IntRange range);

// Adds an option whose value is passed to `set`. Parsing the command line throws ValueError if it is out of `range`.
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
