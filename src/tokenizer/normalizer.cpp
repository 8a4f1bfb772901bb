#include "tokenizer/normalizer.h"

#include <map>

#include "tokenizer/regex_syntax.h"

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

Normalizer::Normalizer(const JsonField& field) {
  if (!field.is_null()) add(field, 0);
}

void Normalizer::add(const JsonField& field, int depth) {
  static constexpr std::pair<const char*, UnicodeForm> kForms[] = {{"NFC", UnicodeForm::kNfc},
                                                                   {"NFD", UnicodeForm::kNfd},
                                                                   {"NFKC", UnicodeForm::kNfkc},
                                                                   {"NFKD", UnicodeForm::kNfkd}};
  const std::string type = field.type();
  if (type == "Sequence") {
    field.allow_only({"type", "normalizers"});
    if (depth == kMaxSequenceDepth) field.refuse("too many sequences inside each other");
    field["normalizers"].each([&](const JsonField& step) { add(step, depth + 1); });
    return;
  }
  if (type == "Prepend") {
    field.allow_only({"type", "prepend"});
    steps_.emplace_back(Prepend{field["prepend"].string()});
    return;
  }
  if (type == "Replace") {
    field.allow_only({"type", "pattern", "content"});
    const JsonField pattern = field["pattern"];
    Regex regex = regex_of(pattern);
    if (pattern.has("Regex")) {
      steps_.emplace_back(ReplaceMatches{std::move(regex), field["content"].string()});
    } else {
      steps_.emplace_back(ReplaceText{pattern["String"].string(), field["content"].string()});
    }
    return;
  }
  for (const auto& [name, form] : kForms) {
    if (type != name) continue;
    field.allow_only({"type"});
    steps_.emplace_back(form);
    return;
  }
  field["type"].refuse("of normalizers, Sequence, NFC, NFD, NFKC, NFKD, Prepend and Replace are");
}

bool Normalizer::run(const Step& step, std::string_view text, std::string& result, Workspace& workspace) {
  if (const auto* form = std::get_if<UnicodeForm>(&step)) {
    if (is_surely_in_form(text, *form)) return false;
    result = to_form(text, *form);
  } else if (const auto* prepend = std::get_if<Prepend>(&step)) {
    if (text.empty()) return false;
    result = concat(prepend->text, text);
  } else if (const auto* replace = std::get_if<ReplaceText>(&step)) {
    result = replaced(text, replace->from, replace->to);
  } else {
    const auto& matches = std::get<ReplaceMatches>(step);
    result.clear();
    size_t at = 0;
    matches.regex.each_match(text, workspace.regex, [&](const Regex::Match& match) {
      result += text.substr(at, match.begin - at);
      result += matches.to;
      at = match.end;
    });
    result += text.substr(at);
  }
  return true;
}

std::string_view Normalizer::apply(std::string_view text, Workspace& workspace) const {
  for (const Step& step : steps_) {
    if (!run(step, text, workspace.spare, workspace)) continue;
    std::swap(workspace.spare, workspace.normalized);
    text = workspace.normalized;
  }
  return text;
}

}  // namespace zeroshard
