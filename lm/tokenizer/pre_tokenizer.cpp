#include "tokenizer/pre_tokenizer.h"

#include <algorithm>

#include "tokenizer/normalizer.h"
#include "tokenizer/regex_syntax.h"
#include "tokenizer/utf8.h"

namespace zeroshard {
namespace {

// The pattern of GPT-2, which the pre-tokenizer ByteLevel uses.
constexpr std::string_view kByteLevelPattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

struct Piece {
  size_t begin = 0, end = 0;
  bool match = false;
};

}  // namespace

PreTokenizer::PreTokenizer(const JsonField& field) {
  if (!field.is_null()) add(field, 0);
}

PreTokenizer::Behavior PreTokenizer::behavior_of(const JsonField& field) {
  const std::string& name = field.string();
  if (name == "Removed") return Behavior::kRemoved;
  if (name == "Isolated") return Behavior::kIsolated;
  if (name == "MergedWithPrevious") return Behavior::kMergedWithPrevious;
  if (name == "MergedWithNext") return Behavior::kMergedWithNext;
  if (name == "Contiguous") return Behavior::kContiguous;
  field.refuse("Removed, Isolated, MergedWithPrevious, MergedWithNext and Contiguous are");
}

void PreTokenizer::add(const JsonField& field, int depth) {
  const std::string type = field.type();
  if (byte_level_) field["type"].refuse("nothing may follow ByteLevel");
  if (type == "Sequence") {
    field.allow_only({"type", "pretokenizers"});
    if (depth == kMaxSequenceDepth) field.refuse("too many sequences inside each other");
    field["pretokenizers"].each([&](const JsonField& step) { add(step, depth + 1); });
  } else if (type == "Split") {
    field.allow_only({"type", "pattern", "behavior", "invert"});
    steps_.emplace_back(Split{regex_of(field["pattern"]), behavior_of(field["behavior"]), field["invert"].boolean()});
  } else if (type == "Digits") {
    field.allow_only({"type", "individual_digits"});
    const bool individual = field.boolean_or("individual_digits", false);
    steps_.emplace_back(Split{Regex(individual ? "\\p{N}" : "\\p{N}+"), Behavior::kIsolated, false});
  } else if (type == "Punctuation") {
    field.allow_only({"type", "behavior"});
    const Behavior behavior = field.has("behavior") ? behavior_of(field["behavior"]) : Behavior::kIsolated;
    steps_.emplace_back(Split{Regex(R"([!-\/:-@\[-`{-~\p{P}])"), behavior, false});
  } else if (type == "WhitespaceSplit") {
    field.allow_only({"type"});
    steps_.emplace_back(Split{Regex("\\s"), Behavior::kRemoved, false});
  } else if (type == "ByteLevel") {
    add_byte_level(field);
  } else if (type == "Metaspace") {
    add_metaspace(field);
  } else {
    field["type"].refuse(
        "of pre-tokenizers, Sequence, Split, Digits, Punctuation, WhitespaceSplit, ByteLevel and Metaspace are");
  }
}

void PreTokenizer::add_byte_level(const JsonField& field) {
  field.allow_only({"type", "add_prefix_space", "trim_offsets", "use_regex"});
  if (field.boolean_or("add_prefix_space", true)) steps_.emplace_back(PrefixSpace{});
  if (field.boolean_or("use_regex", true)) {
    steps_.emplace_back(Split{Regex(kByteLevelPattern), Behavior::kIsolated, false});
  }
  byte_level_ = true;
}

void PreTokenizer::add_metaspace(const JsonField& field) {
  field.allow_only({"type", "replacement", "str_rep", "add_prefix_space", "prepend_scheme", "split"});
  Metaspace step;
  step.replacement = field["replacement"].string();
  if (step.replacement.empty() || decode_utf8(step.replacement).bytes != step.replacement.size()) {
    field["replacement"].refuse("it must be one character");
  }
  const std::string scheme = field.has("prepend_scheme") ? field["prepend_scheme"].string() : "always";
  if (scheme == "first") {
    step.prepend = Metaspace::Prepend::kFirst;
  } else if (scheme == "never" || !field.boolean_or("add_prefix_space", true)) {
    step.prepend = Metaspace::Prepend::kNever;
  } else if (scheme != "always") {
    field["prepend_scheme"].refuse("always, first and never are");
  }
  if (field.boolean_or("split", true)) {
    step.split = Split{Regex(escaped_pattern(step.replacement)), Behavior::kMergedWithNext, false};
  }
  steps_.emplace_back(std::move(step));
}

// One call of each_word(). Each step passes its pieces on to the next step, and the last step passes them to `visit`.
struct PreTokenizer::Run {
  const std::vector<Step>& steps;
  Workspace& workspace;
  const Visit& visit;

  void step(size_t index, std::string_view text, bool at_start) const {
    if (text.empty()) return;
    if (index == steps.size()) return visit(text);
    std::visit([&](const auto& kind) { run(kind, index, text, at_start); }, steps[index]);
  }

  std::string& text_of(size_t index) const { return workspace.steps[index]; }

  void run(const PrefixSpace&, size_t index, std::string_view text, bool at_start) const {
    if (text.starts_with(' ')) return step(index + 1, text, at_start);
    text_of(index) = concat(' ', text);
    step(index + 1, text_of(index), at_start);
  }

  void run(const Metaspace& metaspace, size_t index, std::string_view text, bool at_start) const {
    std::string& result = text_of(index);
    result = replaced(text, " ", metaspace.replacement);
    const bool prepend = metaspace.prepend == Metaspace::Prepend::kAlways ||
                         (metaspace.prepend == Metaspace::Prepend::kFirst && at_start);
    if (prepend && !result.starts_with(metaspace.replacement)) result.insert(0, metaspace.replacement);
    if (!metaspace.split) return step(index + 1, result, at_start);
    run(*metaspace.split, index, result, at_start);
  }

  void run(const Split& split, size_t index, std::string_view text, bool at_start) const {
    const auto next = [&](size_t begin, size_t end) {
      step(index + 1, text.substr(begin, end - begin), at_start && begin == 0);
    };
    if (split.behavior == Behavior::kIsolated) {
      size_t at = 0;
      split.regex.each_match(text, workspace.regex, [&](const Regex::Match& match) {
        next(at, match.begin);
        next(match.begin, match.end);
        at = match.end;
      });
      return next(at, text.size());
    }
    for (const Piece& piece : pieces(split, text)) next(piece.begin, piece.end);
  }

  std::vector<Piece> pieces(const Split& split, std::string_view text) const {
    std::vector<Piece> all;
    size_t at = 0;
    split.regex.each_match(text, workspace.regex, [&](const Regex::Match& match) {
      if (match.begin > at) all.push_back({at, match.begin, split.invert});
      all.push_back({match.begin, match.end, !split.invert});
      at = match.end;
    });
    if (at < text.size()) all.push_back({at, text.size(), split.invert});
    if (split.behavior == Behavior::kRemoved) {
      std::erase_if(all, [](const Piece& piece) { return piece.match; });
      return all;
    }
    const bool backward = split.behavior == Behavior::kMergedWithNext;
    if (backward) std::reverse(all.begin(), all.end());
    std::vector<Piece> joined;
    bool previous = false;  // true: the previous piece is a match
    for (const Piece& piece : all) {
      const bool join = split.behavior == Behavior::kContiguous ? piece.match == previous : piece.match && !previous;
      previous = piece.match;
      if (join && !joined.empty()) {
        joined.back().begin = std::min(joined.back().begin, piece.begin);
        joined.back().end = std::max(joined.back().end, piece.end);
      } else {
        joined.push_back(piece);
      }
    }
    if (backward) std::reverse(joined.begin(), joined.end());
    return joined;
  }
};

void PreTokenizer::each_word(std::string_view text, bool at_start, Workspace& workspace, const Visit& visit) const {
  workspace.steps.resize(steps_.size());
  Run{steps_, workspace, visit}.step(0, text, at_start);
}

}  // namespace zeroshard
