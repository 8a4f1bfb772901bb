#include "monitor/number_text.h"

#include <array>
#include <charconv>
#include <cmath>

#include "base/format.h"

namespace zeroshard {
namespace {

// Has room for every digit of the largest double.
using Buffer = std::array<char, 400>;

std::string non_finite_text(double value) {
  return std::isnan(value) ? "NaN" : value > 0 ? "Infinity" : "-Infinity";
}

template <typename... Format>
std::string text_of(double value, Format... format) {
  if (!std::isfinite(value)) return non_finite_text(value);
  Buffer buffer;
  const auto result = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value, format...);
  return {buffer.data(), result.ptr};
}

// Divides `value` by 1000 until it is below 1000 or no letter is left. Returns the quotient with `decimals` decimals
// and the letter for the number of divisions, which is letters[0] for none. A space stands for no letter. A quotient
// that is still 1000 or more has no decimals.
std::string scaled(double value, std::string_view letters, int decimals) {
  size_t power = 0;
  // A value that would round to 1000 gets the next letter.
  const auto limit = [&] { return 1000 - 0.5 * std::pow(10, -decimals); };
  while (std::abs(value) >= limit() && power + 1 < letters.size()) value /= 1000, ++power;
  std::string text = fixed_text(value, std::abs(value) < 1000 ? decimals : 0);
  if (letters[power] != ' ') text += letters[power];
  return text;
}

}  // namespace

std::string exact_text(double value) {
  if (value == 0 && std::signbit(value)) return "-0.0";  // many readers would read "-0" as an integer and lose the sign
  return text_of(value);
}

std::optional<double> parse_number(std::string_view text) {
  double value = 0;
  const auto result = std::from_chars(text.data(), text.data() + text.size(), value);
  if (result.ec != std::errc() || result.ptr != text.data() + text.size()) return std::nullopt;
  return value;
}

std::string fixed_text(double value, int decimals) {
  return text_of(value, std::chars_format::fixed, decimals);
}

std::string scientific_text(double value, int decimals) {
  return text_of(value, std::chars_format::scientific, decimals);
}

std::string value_text(double value, int decimals) {
  const double magnitude = std::abs(value);
  if (magnitude != 0 && (magnitude < 10 * std::pow(10, -decimals) || magnitude >= 1e6))
    return scientific_text(value, std::max(decimals - 2, 1));
  return fixed_text(value, decimals);
}

std::string rate_text(double value) {
  if (!std::isfinite(value)) return non_finite_text(value);
  return scaled(value, " kMGT", 1);
}

std::string bytes_text(double bytes) {
  if (!std::isfinite(bytes)) return non_finite_text(bytes);
  if (std::abs(bytes) < 1000) return fixed_text(bytes, 0) + " B";
  const std::string text = scaled(bytes, " kMGT", 2);
  return concat(text.substr(0, text.size() - 1), " ", text.back(), "B");
}

std::string duration_text(double seconds) {
  if (!(seconds >= 0 && seconds < 1e9)) return "?";
  const auto whole = static_cast<long>(std::lround(seconds));
  const auto two = [](long first, char unit, long second, char smaller) {
    return std::to_string(first) + unit + (second < 10 ? "0" : "") + std::to_string(second) + smaller;
  };
  if (whole < 60) return std::to_string(whole) + "s";
  if (whole < 3600) return two(whole / 60, 'm', whole % 60, 's');
  if (whole < 86400) return two(whole / 3600, 'h', whole % 3600 / 60, 'm');
  return two(whole / 86400, 'd', whole % 86400 / 3600, 'h');
}

}  // namespace zeroshard
