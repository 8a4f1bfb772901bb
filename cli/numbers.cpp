#include "numbers.h"

#include <charconv>
#include <cmath>

#include "zeroshard/error.h"

namespace zeroshard::cli {
namespace {

template <typename Number>
Number parse(const char* option, const std::string& text, Number min, const char* expected) {
  Number value{};
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc{} || stop != end || !(value >= min) || std::isinf(static_cast<double>(value))) {
    throw ValueError(std::string(option) + " is '" + text + "', expected " + expected);
  }
  return value;
}

}  // namespace

int parse_int(const char* option, const std::optional<std::string>& text, int min, int otherwise) {
  if (!text) return otherwise;
  return parse<int>(option, *text, min, min == 0 ? "a whole number >= 0" : "a whole number >= 1");
}

double parse_seconds(const char* option, const std::optional<std::string>& text, double otherwise) {
  return text ? parse<double>(option, *text, 0.0, "seconds >= 0") : otherwise;
}

}  // namespace zeroshard::cli
