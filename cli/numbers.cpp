#include "numbers.h"

#include <CLI/CLI.hpp>
#include <charconv>
#include <cmath>

#include "zeroshard/error.h"

namespace zeroshard::cli {
namespace {

constexpr int kMaxInt = std::numeric_limits<int>::max();
constexpr const char* kSeconds = "seconds >= 0";

// Returns text about the allowed numbers, for an error message or the help. If `name_max` is true, the text names the
// upper limit, even if that limit is only the largest int. Otherwise it names only the lower limit.
std::string describe(IntRange range, bool name_max) {
  std::string text = "a whole number >= " + std::to_string(range.min);
  if (name_max) text += " and <= " + std::to_string(range.max);
  return text;
}

[[noreturn]] void fail(const std::string& option, const std::string& text, const std::string& expected) {
  const std::string is = text.empty() ? " has no value" : " is '" + text + "'";
  throw ValueError(option + is + ", expected " + expected);
}

double parse_seconds(const std::string& option, const std::string& text) {
  double value = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc{} || stop != end || !(value >= 0) || std::isinf(value)) fail(option, text, kSeconds);
  return value;
}

// Adds an option. CLI11 calls `read` with the option's name and text while it parses the command line. So an error of
// `read` comes before the subcommand's callback runs.
void add(CLI::App& app, const std::string& names, const std::string& expected, const std::string& help,
         std::function<void(const std::string& option, const std::string& text)> read) {
  const std::string first = names.substr(0, names.find(','));
  app.add_option_function<std::string>(
         names, [first, read](const std::string& text) { read(first, text); }, help)
      ->type_name(expected);
}

}  // namespace

int parse_int(const std::string& option, const std::string& text, IntRange range) {
  int value = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  const bool too_large = stop == end && error == std::errc::result_out_of_range && !text.starts_with('-');
  if (error != std::errc{} || stop != end || value < range.min || value > range.max) {
    fail(option, text, describe(range, too_large || range.max != kMaxInt));
  }
  return value;
}

void add_int(CLI::App& app, const std::string& names, IntRange range, std::function<void(int)> set,
             const std::string& help) {
  add(app, names, describe(range, range.max != kMaxInt), help,
      [range, set](const std::string& option, const std::string& text) { set(parse_int(option, text, range)); });
}

void add_seconds(CLI::App& app, const std::string& names, double& value, const std::string& help) {
  add(app, names, kSeconds, help,
      [&value](const std::string& option, const std::string& text) { value = parse_seconds(option, text); });
}

}  // namespace zeroshard::cli
