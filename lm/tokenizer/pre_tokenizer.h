#pragma once
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "tokenizer/json_field.h"
#include "tokenizer/regex.h"
#include "tokenizer/workspace.h"

namespace zeroshard {

// Cuts text into words by the rules in the field "pre_tokenizer" of tokenizer.json. Each word is encoded on its own.
class PreTokenizer {
 public:
  using Visit = std::function<void(std::string_view word)>;

  // If `field` is null, the whole text is one word. Throws ValueError for unsupported pre-tokenizers.
  explicit PreTokenizer(const JsonField& field);

  // Calls `visit` for each word of `text`. A word is valid only during its call. `at_start` says whether `text` is at
  // the beginning of the whole text that is encoded.
  void each_word(std::string_view text, bool at_start, Workspace& workspace, const Visit& visit) const;
  // Returns whether words are encoded as bytes, which the vocabulary writes in GPT-2's alphabet.
  bool byte_level() const { return byte_level_; }

 private:
  enum class Behavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };
  struct Split {
    Regex regex;
    Behavior behavior = Behavior::kIsolated;
    bool invert = false;
  };
  struct PrefixSpace {};
  struct Metaspace {
    enum class Prepend { kAlways, kFirst, kNever };
    std::string replacement;
    Prepend prepend = Prepend::kAlways;
    std::optional<Split> split;
  };
  using Step = std::variant<Split, PrefixSpace, Metaspace>;
  struct Run;

  static Behavior behavior_of(const JsonField& field);
  void add(const JsonField& field, int depth);
  void add_byte_level(const JsonField& field);
  void add_metaspace(const JsonField& field);

  std::vector<Step> steps_;
  bool byte_level_ = false;
};

}  // namespace zeroshard
