#pragma once
#include <functional>
#include <limits>
#include <optional>
#include <string>

#include "launch/limits.h"

namespace CLI {
class App;
}

// Adds options with numeric values. zeroshard itself parses these values, because the error of CLI11 for a wrong value
// would not name the option, its value and what is expected.
namespace zeroshard::cli {

struct IntRange {
  int min = 0, max = std::numeric_limits<int>::max();
};

inline constexpr IntRange kRanksPerHost{.min = 1, .max = kMaxRanksPerHost};

// Returns the number in `text`. Throws ValueError if `text` is not a whole number in `range`.
int parse_int(const std::string& option, const std::string& text, IntRange range);

// Adds an option that passes its value to `set`. Parsing the command line throws ValueError if the value is not a whole
// number in `range`.
void add_int(CLI::App& app, const std::string& names, IntRange range, std::function<void(int)> set,
             const std::string& help);

// Adds an option that sets `value`, which must live as long as `app`.
template <typename Value>
void add_int(CLI::App& app, const std::string& names, IntRange range, Value& value, const std::string& help) {
  add_int(
      app, names, range, [&value](int given) { value = given; }, help);
}

// Adds an option that takes a number of seconds and sets `value`, which must live as long as `app`. Parsing the command
// line throws ValueError if the number is negative or not finite.
void add_seconds(CLI::App& app, const std::string& names, double& value, const std::string& help);

}  // namespace zeroshard::cli
