#pragma once
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "tokenizer/character_map.h"
#include "tokenizer/charsmap.h"
#include "tokenizer/json_field.h"
#include "tokenizer/regex.h"
#include "tokenizer/unicode_form.h"
#include "tokenizer/workspace.h"

namespace zeroshard {

// Returns {"String": ...} or {"Regex": ...} as a regular expression.
Regex regex_of(const JsonField& pattern);

// Changes text before it is cut into words, as tokenizer.json defines.
class Normalizer {
 public:
  // A null field means no changes. Throws ValueError for unsupported normalizers.
  explicit Normalizer(const JsonField& field);

  // Returns the changed text. It is `text` itself if nothing changes. Otherwise it is in the workspace, and valid until
  // the next call with that workspace.
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
  struct Strip {
    bool left = true, right = true;
  };
  using Step = std::variant<UnicodeForm, CharacterMap, Charsmap, Strip, Prepend, ReplaceText, ReplaceMatches>;
  void add(const JsonField& field, int depth);
  bool add_by_name(const JsonField& field, const std::string& type);
  void add_replace(const JsonField& field);
  // Each returns false if `text` does not change; otherwise it writes the result.
  static bool run(const UnicodeForm& form, std::string_view text, std::string& result, Workspace& workspace);
  static bool run(const CharacterMap& map, std::string_view text, std::string& result, Workspace& workspace);
  static bool run(const Charsmap& charsmap, std::string_view text, std::string& result, Workspace& workspace);
  static bool run(const Strip& strip, std::string_view text, std::string& result, Workspace& workspace);
  static bool run(const Prepend& prepend, std::string_view text, std::string& result, Workspace& workspace);
  static bool run(const ReplaceText& replace, std::string_view text, std::string& result, Workspace& workspace);
  static bool run(const ReplaceMatches& replace, std::string_view text, std::string& result, Workspace& workspace);

  std::vector<Step> steps_;
};

// Returns `text` with every `from`, which must not be empty, replaced by `to`.
std::string replaced(std::string_view text, std::string_view from, std::string_view to);

inline constexpr int kMaxSequenceDepth = 8;

}  // namespace zeroshard
