#include "tokenizer/normalizer.h"

#include <string_view>
#include <utility>

#include "base/base64.h"
#include "tokenizer/regex_syntax.h"
#include "tokenizer/utf8.h"

namespace zeroshard {

std::string replaced(std::string_view text, std::string_view from, std::string_view to) {
  std::string result;
  result.reserve(text.size());
  size_t at = 0;
  for (size_t found = text.find(from); found != text.npos; found = text.find(from, at)) {
    result += text.substr(at, found - at);
    result += to;
    at = found + from.size();
  }
  result += text.substr(at);
  return result;
}

Regex regex_of(const JsonField& pattern) {
  pattern.allow_only({"String", "Regex"});
  if (pattern.has("Regex")) return Regex(pattern["Regex"].string());
  const std::string& text = pattern["String"].string();
  if (text.empty()) pattern.refuse("an empty string matches nothing");
  return Regex(escaped_pattern(text));
}

namespace {

Charsmap charsmap_of(const JsonField& field) {
  std::vector<std::byte> bytes;
  try {
    bytes = from_base64(field.string());
    return {{reinterpret_cast<const char*>(bytes.data()), bytes.size()}, "the charsmap"};
  } catch (const ValueError& error) {
    field.refuse(error.what());
  }
}

std::string_view stripped(std::string_view text, bool left, bool right) {
  while (left && !text.empty()) {
    const CodePoint first = decode_utf8(text);
    if (!is_white_space(first.code)) break;
    text.remove_prefix(first.bytes);
  }
  while (right && !text.empty()) {
    const CodePoint last = last_character(text);
    if (!is_white_space(last.code)) break;
    text.remove_suffix(last.bytes);
  }
  return text;
}

}  // namespace

Normalizer::Normalizer(const JsonField& field) {
  if (!field.is_null()) add(field, 0);
}

// Adds a normalizer without parameters. Returns false and adds nothing if no such normalizer has the name `type`.
bool Normalizer::add_by_name(const JsonField& field, const std::string& type) {
  using Named = std::variant<UnicodeForm, CharacterMap>;
  static constexpr std::pair<std::string_view, Named> kSteps[] = {{"NFC", UnicodeForm::kNfc},
                                                                  {"NFD", UnicodeForm::kNfd},
                                                                  {"NFKC", UnicodeForm::kNfkc},
                                                                  {"NFKD", UnicodeForm::kNfkd},
                                                                  {"Lowercase", CharacterMap::kLowercase},
                                                                  {"StripAccents", CharacterMap::kStripAccents},
                                                                  {"Nmt", CharacterMap::kNmt}};
  for (const auto& [name, step] : kSteps) {
    if (type != name) continue;
    field.allow_only({"type"});
    std::visit([&](const auto& kind) { steps_.emplace_back(kind); }, step);
    return true;
  }
  return false;
}

void Normalizer::add_replace(const JsonField& field) {
  field.allow_only({"type", "pattern", "content"});
  const JsonField pattern = field["pattern"];
  Regex regex = regex_of(pattern);
  if (pattern.has("Regex")) {
    steps_.emplace_back(ReplaceMatches{std::move(regex), field["content"].string()});
  } else {
    steps_.emplace_back(ReplaceText{pattern["String"].string(), field["content"].string()});
  }
}

void Normalizer::add(const JsonField& field, int depth) {
  const std::string type = field.type();
  if (add_by_name(field, type)) return;
  if (type == "Sequence") {
    field.allow_only({"type", "normalizers"});
    if (depth == kMaxSequenceDepth) field.refuse("too many sequences inside each other");
    field["normalizers"].each([&](const JsonField& step) { add(step, depth + 1); });
  } else if (type == "Prepend") {
    field.allow_only({"type", "prepend"});
    steps_.emplace_back(Prepend{field["prepend"].string()});
  } else if (type == "Replace") {
    add_replace(field);
  } else if (type == "Strip") {
    field.allow_only({"type", "strip_left", "strip_right"});
    steps_.emplace_back(Strip{field["strip_left"].boolean(), field["strip_right"].boolean()});
  } else if (type == "Precompiled") {
    field.allow_only({"type", "precompiled_charsmap"});
    steps_.emplace_back(charsmap_of(field["precompiled_charsmap"]));
  } else {
    field["type"].refuse(
        "of normalizers, Sequence, NFC, NFD, NFKC, NFKD, Lowercase, StripAccents, Nmt, Strip, Prepend, Replace and "
        "Precompiled are");
  }
}

bool Normalizer::run(const UnicodeForm& form, std::string_view text, std::string& result, Workspace&) {
  if (is_surely_in_form(text, form)) return false;
  result = to_form(text, form);
  return true;
}

bool Normalizer::run(const CharacterMap& map, std::string_view text, std::string& result, Workspace&) {
  result = mapped(text, map);
  return true;
}

bool Normalizer::run(const Charsmap& charsmap, std::string_view text, std::string& result, Workspace&) {
  result = charsmap.apply_to_graphemes(text);
  return true;
}

bool Normalizer::run(const Strip& strip, std::string_view text, std::string& result, Workspace&) {
  result = stripped(text, strip.left, strip.right);
  return true;
}

bool Normalizer::run(const Prepend& prepend, std::string_view text, std::string& result, Workspace&) {
  if (text.empty()) return false;
  result = concat(prepend.text, text);
  return true;
}

bool Normalizer::run(const ReplaceText& replace, std::string_view text, std::string& result, Workspace&) {
  result = replaced(text, replace.from, replace.to);
  return true;
}

bool Normalizer::run(const ReplaceMatches& replace, std::string_view text, std::string& result, Workspace& workspace) {
  result.clear();
  size_t at = 0;
  replace.regex.each_match(text, workspace.regex, [&](const Regex::Match& match) {
    result += text.substr(at, match.begin - at);
    result += replace.to;
    at = match.end;
  });
  result += text.substr(at);
  return true;
}

std::string_view Normalizer::apply(std::string_view text, Workspace& workspace) const {
  for (const Step& step : steps_) {
    const auto run_step = [&](const auto& kind) { return run(kind, text, workspace.spare, workspace); };
    if (!std::visit(run_step, step)) continue;
    std::swap(workspace.spare, workspace.normalized);
    text = workspace.normalized;
  }
  return text;
}

}  // namespace zeroshard
