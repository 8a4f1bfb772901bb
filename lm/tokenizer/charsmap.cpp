#include "tokenizer/charsmap.h"

#include "base/check.h"
#include "tokenizer/utf8.h"

namespace zeroshard {
namespace {

uint32_t little_endian(std::string_view bytes) {
  uint32_t value = 0;
  for (size_t i = 0; i < 4; ++i) value |= uint32_t{static_cast<unsigned char>(bytes[i])} << (8 * i);
  return value;
}

// These functions return the parts of a unit of the double array. label_of() returns the byte that leads to the unit,
// or a number with bit 31 set, which equals no byte. ends_text() returns whether a text ends at the unit. The XOR of
// offset_of(), the unit's position and a byte is the position of the successor for that byte.
uint32_t label_of(uint32_t unit) {
  return unit & 0x800000FFU;
}
bool ends_text(uint32_t unit) {
  return ((unit >> 8) & 1) != 0;
}
size_t offset_of(uint32_t unit) {
  return size_t{unit >> 10} << ((unit & (1U << 9)) >> 6);
}

}  // namespace

Charsmap::Charsmap(std::string_view bytes, const std::string& name) {
  if (bytes.empty()) return;
  const size_t units_bytes = bytes.size() > 4 ? little_endian(bytes) : 0;
  ZS_CHECK(units_bytes % 4 == 0 && units_bytes > 0 && units_bytes + 4 < bytes.size(), "'", name,
           "' is damaged: its normalization rules of ", bytes.size(), " bytes have a table of ", units_bytes);
  for (size_t at = 4; at < 4 + units_bytes; at += 4) units_.push_back(little_endian(bytes.substr(at)));
  replacements_ = bytes.substr(4 + units_bytes);
  ZS_CHECK(is_valid_utf8(replacements_), "'", name, "' is damaged: its normalization rules are not UTF-8");
}

Charsmap::Rule Charsmap::find(std::string_view text, Which which) const {
  Rule rule;
  if (units_.empty()) return rule;
  size_t node = offset_of(units_[0]);
  for (size_t at = 0; at < text.size() && (which == Which::kLongest || rule.bytes == 0); ++at) {
    const auto byte = static_cast<unsigned char>(text[at]);
    node ^= byte;
    if (node >= units_.size() || label_of(units_[node]) != byte) break;
    const bool ends = ends_text(units_[node]);
    node ^= offset_of(units_[node]);
    if (!ends || node >= units_.size()) continue;
    const size_t begin = units_[node] & 0x7FFFFFFFU;
    if (begin >= replacements_.size()) continue;
    const std::string_view rest = std::string_view(replacements_).substr(begin);
    rule = {at + 1, rest.substr(0, rest.find('\0'))};
  }
  return rule;
}

std::string Charsmap::apply_to_graphemes(std::string_view text) const {
  constexpr size_t kLongGrapheme = 6;
  std::string result;
  result.reserve(text.size());
  const auto apply = [&](std::string_view part) {
    const Rule rule = find(part, Which::kShortest);
    if (rule.bytes > 0) result += rule.replacement;
    return rule.bytes > 0;
  };
  while (!text.empty()) {
    std::string_view grapheme = text.substr(0, grapheme_length(text));
    text.remove_prefix(grapheme.size());
    if (grapheme.size() < kLongGrapheme && apply(grapheme)) continue;
    while (!grapheme.empty()) {
      const std::string_view character = grapheme.substr(0, utf8_length(grapheme[0]));
      if (!apply(character)) result += character;
      grapheme.remove_prefix(character.size());
    }
  }
  return result;
}

}  // namespace zeroshard
