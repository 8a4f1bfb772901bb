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

// Returns a regular expression for `pattern`, which is {"String": TEXT} or {"Regex": EXPRESSION}. Throws ValueError for
// another pattern, for an empty TEXT, and for an EXPRESSION that Regex does not support.
Regex regex_of(const JsonField& pattern);

// Changes text before the pre-tokenizer cuts it into words, by the rules in the field "normalizer" of tokenizer.json.
class Normalizer {
 public:
  // If `field` is null, text stays unchanged. Throws ValueError for unsupported normalizers.
  explicit Normalizer(const JsonField& field);

  // Returns the changed text. If no step of the normalizer makes a copy, this is `text` itself. Otherwise it is in the
  // workspace, and is valid until the next call with that workspace.
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
  // Each function runs a step. Normally it writes the changed text to `result` and returns true. If it can tell in
  // advance that `text` would not change, it returns false and leaves `result` alone.
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
