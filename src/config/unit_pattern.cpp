#include "config/unit_pattern.h"

#include <charconv>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "base/format.h"

namespace zeroshard {
namespace {

std::vector<std::string_view> parts_of(std::string_view text) {
  std::vector<std::string_view> parts;
  size_t begin = 0;
  for (size_t end = text.find('.'); end != text.npos; end = text.find('.', begin)) {
    parts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  parts.push_back(text.substr(begin));
  return parts;
}

std::optional<uint64_t> number(std::string_view text) {
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

struct NumberRange {
  uint64_t first, last;
};

// Returns the range of numbers that a part like "0-3" means. Returns nothing if the part is not a range.
std::optional<NumberRange> range_of(std::string_view part) {
  const size_t dash = part.find('-');
  if (dash == part.npos) return std::nullopt;
  const auto first = number(part.substr(0, dash)), last = number(part.substr(dash + 1));
  if (!first || !last) return std::nullopt;
  return NumberRange{*first, *last};
}

bool matches(std::string_view pattern, std::string_view part) {
  if (pattern == "*" || pattern == part) return true;
  const auto range = range_of(pattern);
  const auto value = number(part);
  return range && value && range->first <= *value && *value <= range->last;
}

}  // namespace

std::string problem_of_pattern(const std::string& pattern) {
  for (const std::string_view part : parts_of(pattern)) {
    if (part.empty()) return "has an empty part";
    if (const auto range = range_of(part); range && range->first > range->last)
      return concat("has the range ", part, ", which is empty");
  }
  return "";
}

bool names_unit(const std::string& pattern, const std::string& unit) {
  const std::vector<std::string_view> wanted = parts_of(pattern), parts = parts_of(unit);
  if (wanted.size() > parts.size()) return false;
  for (size_t i = 0; i < wanted.size(); ++i)
    if (!matches(wanted[i], parts[parts.size() - wanted.size() + i])) return false;
  return true;
}

}  // namespace zeroshard
