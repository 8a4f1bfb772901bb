#include "tokenizer/regex_syntax.h"

#include <array>
#include <vector>

#include "base/check.h"
#include "tokenizer/utf8.h"

namespace zeroshard {
namespace {

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}
bool is_alnum(char c) {
  return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

// The characters of the classes \s and \w in Oniguruma. They are written out, because \s has U+180E in PCRE2 but not in
// Oniguruma, and \w has marks in Oniguruma but not in PCRE2. Outside of brackets, \w also has the six numbers in
// kWordNumbers in Oniguruma.
constexpr std::string_view kSpaceClass = "\\t-\\r\\x{85}\\p{Z}";
constexpr std::string_view kWord = "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}";
constexpr std::string_view kWordNumbers = "\\x{B2}\\x{B3}\\x{B9}\\x{BC}-\\x{BE}";

class Translator {
 public:
  explicit Translator(std::string_view pattern) : in_(pattern) {}

  std::string run() {
    while (at_ < in_.size()) {
      const char c = in_[at_];
      if (c == '\\') {
        escape(/*in_class=*/false);
      } else if (c == '[') {
        character_class();
      } else if (c == '(') {
        group();
      } else if (c == '{') {
        brace();
      } else {
        if (ignores_case_.back()) check_case();
        if (c == ')' && ignores_case_.size() > 1) ignores_case_.pop_back();
        out_ += c;
        ++at_;
      }
    }
    return std::move(out_);
  }

 private:
  [[noreturn]] void refuse(size_t begin, size_t end, std::string_view why) const {
    throw ValueError(concat("'", in_.substr(begin, end - begin), "' at byte ", begin, " of the regular expression '",
                            in_, "' ", why));
  }
  char peek(size_t ahead = 0) const { return at_ + ahead < in_.size() ? in_[at_ + ahead] : '\0'; }
  bool starts(std::string_view text) const { return in_.substr(at_, text.size()) == text; }

  void copy(size_t bytes) {
    out_ += in_.substr(at_, bytes);
    at_ += bytes;
  }

  // Checks the characters at at_ in a part of the pattern that ignores case. Throws ValueError for a character beyond
  // ASCII, and for two letters that Oniguruma then also matches with one character, such as "ss" with U+00DF.
  void check_case() const {
    const auto lower = [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c | 0x20) : c; };
    const std::string pair = {lower(peek()), lower(peek(1))};
    for (const char* folded : {"ss", "ff", "fi", "fl", "st"})
      if (pair == folded) refuse(at_, at_ + 2, "is not supported inside of (?i:...), where case is ignored");
    if (static_cast<unsigned char>(peek()) >= 0x80) {
      refuse(at_, at_ + utf8_length(peek()), "is not supported inside of (?i:...), where case is ignored");
    }
  }

  void group() {
    if (peek(1) == '*') refuse(at_, at_ + 2, "is not supported");
    if (starts("(?i)") || starts("(?-i)")) {
      ignores_case_.back() = peek(2) == 'i';
    } else {
      ignores_case_.push_back(starts("(?i:") || (ignores_case_.back() && !starts("(?-i:")));
    }
    if (peek(1) != '?') return copy(1);
    for (const std::string_view opening :
         {"(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>", "(?i:", "(?i)", "(?-i:", "(?-i)"})
      if (starts(opening)) return copy(opening.size());
    refuse(at_, std::min(at_ + 4, in_.size()), "is not supported: of groups, (?: (?= (?! (?<= (?<! (?> and (?i: are");
  }

  // Translates {n}, {n,}, {n,m} or {,m}. A brace that begins none of these stands for itself. Throws ValueError if a +
  // or ? follows that has different meanings in the two libraries.
  void brace() {
    size_t end = at_ + 1;
    const auto number = [&] {
      const size_t begin = end;
      while (end < in_.size() && is_digit(in_[end])) ++end;
      return in_.substr(begin, end - begin);
    };
    const std::string_view least = number();
    const bool comma = end < in_.size() && in_[end] == ',';
    if (comma) ++end;
    const std::string_view most = comma ? number() : std::string_view();
    if (end >= in_.size() || in_[end] != '}' || (least.empty() && most.empty())) {
      out_ += "\\{";
      ++at_;
      return;
    }
    ++end;
    const char after = end < in_.size() ? in_[end] : '\0';
    if (after == '+' || (after == '?' && !comma)) {
      refuse(at_, end + 1, "is not supported: regular expression libraries read it differently");
    }
    out_ += concat("{", least.empty() ? "0" : least, comma ? "," : "", most, "}");
    at_ = end;
  }

  void character_class() {
    const size_t begin = at_;
    copy(1);
    if (peek() == '^') copy(1);
    if (peek() == ']') refuse(begin, at_ + 1, "is not supported: write \\] in a class");
    while (at_ < in_.size() && in_[at_] != ']') {
      if (in_[at_] == '[') refuse(at_, at_ + 1, "inside a class is not supported: write \\[");
      if (starts("&&")) refuse(at_, at_ + 2, "inside a class is not supported");
      if (ignores_case_.back() && static_cast<unsigned char>(peek()) >= 0x80) check_case();
      if (in_[at_] == '\\') {
        escape(/*in_class=*/true);
      } else {
        copy(1);
      }
    }
    if (at_ >= in_.size()) refuse(begin, in_.size(), "has no end");
    copy(1);
  }

  void escape(bool in_class) {
    const char c = peek(1);
    const size_t begin = at_;
    if (c == 'p' || c == 'P') return property();
    if (c == 'x' || c == 'u') return code_point(c);
    at_ += 2;
    const auto put = [&](const auto&... parts) { out_ += concat(parts...); };
    switch (c) {
      case 's':
        return in_class ? put(kSpaceClass) : put('[', kSpaceClass, ']');
      case 'w':
        return in_class ? put(kWord) : put('[', kWord, kWordNumbers, ']');
      case 'S':
        return in_class ? put("\\S\\x{180E}") : put("[^", kSpaceClass, ']');
      case 'W':
        if (in_class) refuse(begin, at_, "inside a class is not supported");
        return put("[^", kWord, kWordNumbers, ']');
      case 'd':
        return put("\\p{Nd}");
      case 'D':
        return put("\\P{Nd}");
      case 'v':
        return put("\\x{B}");
      case 'r':
      case 'n':
      case 't':
      case 'f':
        return put(in_.substr(begin, 2));
      case '\0':
        if (begin + 1 >= in_.size()) refuse(begin, in_.size(), "has no end");
        [[fallthrough]];
      default:
        if (is_alnum(c)) refuse(begin, at_, "is not supported");
    }
    // Any other character stands for itself. The caller copies the remaining bytes of a character beyond ASCII.
    if (static_cast<unsigned char>(c) < 0x80) out_ += '\\';
    out_ += c;
  }

  void property() {
    const size_t begin = at_, end = in_.find('}', at_);
    if (peek(2) != '{' || end == in_.npos) refuse(begin, at_ + 2, "needs a name in braces");
    std::string_view name = in_.substr(at_ + 3, end - at_ - 3);
    at_ = end + 1;
    bool negative = in_[begin + 1] == 'P';
    if (name.starts_with('^')) {
      negative = !negative;
      name.remove_prefix(1);
    }
    for (const char c : name)
      if (!is_alnum(c) && c != '_') refuse(begin, at_, "is not supported");
    // Names of up to two letters are general categories. Longer names are scripts. For Oniguruma a script does not
    // include the script extensions, so PCRE2 needs "sc:".
    out_ += concat(negative ? "\\P{" : "\\p{", name.size() > 2 ? "sc:" : "", name, "}");
  }

  // Translates \xHH, \x{H...} or \uHHHH.
  void code_point(char kind) {
    const size_t begin = at_;
    at_ += 2;
    const bool braces = kind == 'x' && peek() == '{';
    if (braces) ++at_;
    size_t digits = 0;
    const size_t most = braces ? 8 : kind == 'x' ? 2 : 4;
    uint32_t code = 0;
    for (; digits < most && std::isxdigit(static_cast<unsigned char>(peek())) != 0; ++digits, ++at_) {
      const char c = peek();
      code = code * 16 + static_cast<uint32_t>(is_digit(c) ? c - '0' : (c | 0x20) - 'a' + 10);
    }
    const bool complete = digits > 0 && (kind == 'x' || digits == 4) && (!braces || peek() == '}');
    if (braces) ++at_;
    // For Oniguruma, \x80 and above without braces are single bytes, and not characters.
    const bool character =
        code < 0x110000 && (code < 0xD800 || code > 0xDFFF) && (kind == 'u' || braces || code < 0x80);
    if (!complete || !character) refuse(begin, std::min(at_, in_.size()), "is no character");
    std::array<char, 16> text{};
    std::snprintf(text.data(), text.size(), "\\x{%X}", code);
    out_ += text.data();
  }

  std::string_view in_;
  std::string out_;
  size_t at_ = 0;
  std::vector<bool> ignores_case_ = {false};  // first entry: outside of groups; then one entry by open group
};

}  // namespace

std::string to_pcre2(std::string_view pattern) {
  ZS_CHECK(is_valid_utf8(pattern), "a regular expression is not UTF-8");
  return Translator(pattern).run();
}

std::string escaped_pattern(std::string_view text) {
  std::string result;
  for (const char c : text) {
    if (static_cast<unsigned char>(c) < 0x80 && !is_alnum(c)) result += '\\';
    result += c;
  }
  return result;
}

}  // namespace zeroshard
