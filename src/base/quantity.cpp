#include "base/quantity.h"

#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <string>

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
constexpr std::array<Suffix, 5> kBits{{{"bit", 1}, {"kbit", 1e3}, {"mbit", 1e6}, {"gbit", 1e9}, {"tbit", 1e12}}};

// Reads a decimal number and a suffix of any case, with or without spaces. Returns nothing for another text. Uses
// from_chars(), because from_chars() does not depend on the locale.
std::optional<double> scaled(std::string_view text, const auto& suffixes) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{} || !std::isfinite(number)) return std::nullopt;
  std::string rest;
  for (const char c : text.substr(size_t(end - text.data()))) {
    if (c != ' ') rest += char(std::tolower(static_cast<unsigned char>(c)));
  }
  for (const Suffix& suffix : suffixes) {
    // A value within a rounding error of a whole number becomes the whole number, so that 1.1B is exactly 1100000000.
    if (rest == suffix.name) {
      const double value = number * suffix.factor, whole = std::round(value);
      return std::abs(value - whole) <= std::abs(whole) * 1e-15 ? whole : value;
    }
  }
  return std::nullopt;
}

}  // namespace

std::optional<double> bytes_in(std::string_view text) {
  const std::optional<double> bytes = scaled(text, kBytes);
  return bytes && std::isfinite(*bytes) && *bytes >= 1 ? bytes : std::nullopt;
}

std::optional<double> bits_in(std::string_view text) {
  if (text.ends_with("/s")) text.remove_suffix(2);
  return scaled(text, kBits);
}

std::optional<double> count_in(std::string_view text) {
  return scaled(text, kCounts);
}

}  // namespace zeroshard
