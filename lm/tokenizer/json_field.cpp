#include "tokenizer/json_field.h"

#include "base/shown_text.h"

namespace zeroshard {
namespace {

constexpr int kMaxDepth = 64;

}  // namespace

int json_depth(std::string_view text) {
  int depth = 0, most = 0;
  bool in_string = false;
  for (size_t at = 0; at < text.size(); ++at) {
    const char c = text[at];
    if (in_string) {
      if (c == '\\') ++at;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      most = std::max(most, ++depth);
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  return most;
}

nlohmann::json parse_json(std::string_view text, const std::string& name) {
  ZS_CHECK(json_depth(text) <= kMaxDepth, "'", name, "' has more than ", kMaxDepth, " brackets inside each other");
  try {
    return nlohmann::json::parse(text);
  } catch (const nlohmann::json::exception& error) {
    throw ValueError(concat("'", name, "' is not JSON: ", shown_text(error.what(), 200)));
  }
}

}  // namespace zeroshard
