#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <string>

#include "base/check.h"
#include "zeroshard/plan.h"

namespace zeroshard {
namespace {

struct Suffix {
  std::string_view name;  // lower case
  double factor;
};
constexpr std::array<Suffix, 5> kCounts{{{"", 1}, {"k", 1e3}, {"m", 1e6}, {"b", 1e9}, {"t", 1e12}}};
constexpr std::array<Suffix, 10> kBytes{{{"", 1},
                                         {"b", 1},
                                         {"kb", 1e3},
                                         {"mb", 1e6},
                                         {"gb", 1e9},
                                         {"tb", 1e12},
                                         {"kib", 1024.},
                                         {"mib", 1048576.},
                                         {"gib", 1073741824.},
                                         {"tib", 1099511627776.}}};

// A decimal number and a suffix; NaN for anything else. from_chars does not depend on the locale.
double parse_scaled(std::string_view text, const auto& suffixes) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{}) return std::nan("");
  std::string rest;
  for (const char c : text.substr(size_t(end - text.data()))) {
    if (c != ' ') rest += char(std::tolower(static_cast<unsigned char>(c)));
  }
  for (const Suffix& suffix : suffixes) {
    // Rounded to a whole number when it is within a rounding error of one: 1.1B is 1100000000.
    if (rest == suffix.name) {
      const double value = number * suffix.factor, whole = std::round(value);
      return std::abs(value - whole) <= std::abs(whole) * 1e-15 ? whole : value;
    }
  }
  return std::nan("");
}

}  // namespace

int64_t parse_param_count(std::string_view text) {
  const double value = parse_scaled(text, kCounts);
  ZS_CHECK(std::isfinite(value) && value >= 1 && value <= double(kMaxParams) && value == std::floor(value), "'", text,
           "' is not a number of parameters: give a whole number from 1 to 1e14, such as 7.5e9, 7.5B or 350M");
  return int64_t(value);
}

double parse_bytes(std::string_view text) {
  const double value = parse_scaled(text, kBytes);
  ZS_CHECK(std::isfinite(value) && value >= 1, "'", text,
           "' is not an amount of memory: give bytes, or a number with a unit, such as 24e9, 24GB or 22.5GiB");
  return value;
}

}  // namespace zeroshard
