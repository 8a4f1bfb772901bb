#pragma once
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "tokenizer/json_field.h"
#include "tokenizer/regex.h"
#include "tokenizer/unicode_form.h"
#include "tokenizer/workspace.h"

namespace zeroshard {

// {"String": ...} or {"Regex": ...} as a regular expression.
Regex regex_of(const JsonField& pattern);

// What tokenizer.json does with text before it is cut.
class Normalizer {
 public:
  // Null: nothing is done. Throws ValueError for what is not supported.
  explicit Normalizer(const JsonField& field);

  // `text`, or a text in the workspace, which lives until the next call with it.
  std::string_view apply(std::string_view text, Workspace& workspace) const;
  bool empty() const { return steps_.empty(); }

 private:
  struct Prepend {
    std::string text;
  };
  struct ReplaceText {
    std::string from, to;
  };
  struct ReplaceMatches {
    Regex regex;
    std::string to;
  };
  using Step = std::variant<UnicodeForm, Prepend, ReplaceText, ReplaceMatches>;
  void add(const JsonField& field, int depth);
  static bool run(const Step& step, std::string_view text, std::string& result, Workspace& workspace);

  std::vector<Step> steps_;
};

// Replaces every `from`, which is not empty.
std::string replaced(std::string_view text, std::string_view from, std::string_view to);

inline constexpr int kMaxSequenceDepth = 8;

}  // namespace zeroshard
