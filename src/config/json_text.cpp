#include "config/json_text.h"

#include <algorithm>
#include <limits>
#include <set>
#include <variant>
#include <vector>

#include "base/format.h"
#include "base/shown_text.h"
#include "zeroshard/error.h"

namespace zeroshard {
namespace {

struct Position {
  size_t line = 1, column = 1;
};

Position position_of(std::string_view text, size_t offset) {
  Position position;
  for (const char c : text.substr(0, offset)) {
    position = c == '\n' ? Position{position.line + 1, 1} : Position{position.line, position.column + 1};
  }
  return position;
}

[[noreturn]] void fail_at(std::string_view text, size_t offset, const std::string& problem) {
  const Position position = position_of(text, offset);
  throw ConfigError(concat("line ", position.line, ", column ", position.column, ": ", problem));
}

// The most keys of one object. Objects need a limit, because ordered_json compares each key with all other keys of the
// object, so the time grows with the square of their number.
constexpr size_t kMaxKeys = 4096;
constexpr size_t kMaxProblemBytes = 200;  // bytes of the parser's message, which quotes the text

bool is_space(char c) {
  return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}
bool is_word(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

// Rewrites the text as strict JSON. A syntax error keeps its line number. The column changes only after Infinity and
// NaN, which get quotes.
class StrictText {
 public:
  explicit StrictText(std::string_view text) : text_(text) { out_.reserve(text.size() + 16); }

  std::string rewrite() {
    while (at_ < text_.size()) {
      if (starts("//") || starts("#")) {
        blank_until(text_.find('\n', at_));
      } else if (starts("/*")) {
        const size_t end = text_.find("*/", at_ + 2);
        if (end == std::string_view::npos) fail_at(text_, at_, "comment without an end");
        blank_until(end + 2);
      } else if (text_[at_] == '"') {
        copy_string();
      } else if (is_word(text_[at_]) || text_[at_] == '-') {
        copy_word();
      } else {
        copy_mark(text_[at_]);
      }
    }
    return std::move(out_);
  }

 private:
  bool starts(std::string_view prefix) const { return text_.substr(at_, prefix.size()) == prefix; }

  void blank_until(size_t end) {
    for (end = std::min(end, text_.size()); at_ < end; ++at_) out_ += text_[at_] == '\n' ? '\n' : ' ';
  }

  void note_value() {
    last_mark_ = 'v';
    comma_ = std::string::npos;
  }

  void copy_string() {
    size_t end = at_ + 1;
    while (end < text_.size() && text_[end] != '"' && text_[end] != '\n') end += text_[end] == '\\' ? 2 : 1;
    if (end >= text_.size() || text_[end] != '"') fail_at(text_, at_, "string without an end");
    out_ += text_.substr(at_, end + 1 - at_);
    at_ = end + 1;
    note_value();
  }

  void copy_word() {
    size_t end = at_ + 1;
    while (end < text_.size() && is_word(text_[end])) ++end;
    const std::string_view word = text_.substr(at_, end - at_);
    const bool quoted = word == "Infinity" || word == "-Infinity" || word == "NaN";
    out_ += quoted ? concat('"', word, '"') : std::string(word);
    at_ = end;
    note_value();
  }

  void copy_mark(char c) {
    if (!is_space(c)) {
      if ((c == '{' || c == '[') && ++depth_ > kMaxConfigDepth) {
        fail_at(text_, at_, concat("more than ", kMaxConfigDepth, " brackets inside each other"));
      }
      if (c == '}' || c == ']') {
        --depth_;
        if (comma_ != std::string::npos) out_[comma_] = ' ';
        note_value();
      } else {
        // Only a comma that follows a value can be dropped, so "[,]" remains an error.
        comma_ = c == ',' && last_mark_ == 'v' ? out_.size() : std::string::npos;
        last_mark_ = c;
      }
    }
    out_ += c;
    ++at_;
  }

  std::string_view text_;
  std::string out_;
  size_t at_ = 0, comma_ = std::string::npos;  // comma_: position in out_ of a comma that only space follows so far
  int depth_ = 0;
  char last_mark_ = '\0';  // 'v': the end of a value
};

// A callback of the parser. Tracks the path of the current value, and finds keys that an object has twice.
class Follower {
 public:
  bool operator()(Json::parse_event_t event, const Json& parsed) {
    switch (event) {
      case Json::parse_event_t::object_start:
        open_.emplace_back(Object{});
        break;
      case Json::parse_event_t::array_start:
        open_.emplace_back(Array{});
        break;
      case Json::parse_event_t::object_end:
      case Json::parse_event_t::array_end:
        open_.pop_back();
        value_ended();
        break;
      case Json::parse_event_t::key:
        enter(parsed.get<std::string>());
        break;
      case Json::parse_event_t::value:
        value_ended();
        break;
    }
    return true;
  }

  // Returns the path of the current value, such as "optimizer.params.betas[0]". The path of the whole text is empty.
  std::string path() const {
    std::string path;
    for (const auto& each : open_) {
      if (const auto* array = std::get_if<Array>(&each)) {
        path += concat('[', array->index, ']');
      } else {
        path += (path.empty() ? "" : ".") + std::get<Object>(each).last_key;
      }
    }
    return path;
  }

 private:
  struct Object {
    std::set<std::string> keys;
    std::string last_key;
  };
  struct Array {
    size_t index = 0;
  };

  void enter(const std::string& key) {
    Object& object = std::get<Object>(open_.back());
    object.last_key = key;
    if (!object.keys.insert(key).second) throw ConfigError(shown_text(path()) + ": this key is given twice");
    if (object.keys.size() <= kMaxKeys) return;
    open_.pop_back();
    const std::string block = path();
    throw ConfigError(concat(block.empty() ? "the configuration" : shown_text(block), " has more than ", kMaxKeys,
                             " keys: `zeroshard config keys` lists all that there are"));
  }

  void value_ended() {
    if (open_.empty()) return;
    if (auto* array = std::get_if<Array>(&open_.back())) ++array->index;
  }

  std::vector<std::variant<Object, Array>> open_;  // innermost last
};

// Throws ConfigError for a number that is too large. The parser's `message` has the number in quotes but no position,
// so the error names `path`.
[[noreturn]] void fail_number(const std::string& path, const std::string& message) {
  const size_t begin = message.find('\''), end = message.rfind('\'');
  const bool quoted = begin != message.npos && end > begin;
  const std::string number = quoted ? shown_text(message.substr(begin + 1, end - begin - 1)) : "a number";
  throw ConfigError(concat(path.empty() ? "the configuration" : shown_text(path), " = ", number,
                           ": this number is too large: at most ", std::numeric_limits<double>::max(), " can be kept"));
}

}  // namespace

Json read_json(std::string_view text) {
  if (text.size() > kMaxConfigBytes) {
    throw ConfigError(concat("a configuration of ", text.size(), " bytes: at most ", kMaxConfigBytes, " are read"));
  }
  const std::string strict = StrictText(text).rewrite();
  Follower follower;
  try {
    return Json::parse(strict, [&](int, Json::parse_event_t event, Json& parsed) { return follower(event, parsed); });
  } catch (const Json::parse_error& error) {
    const std::string message = error.what();
    const size_t start = message.find("syntax error");
    const std::string problem = start == message.npos ? message : message.substr(start);
    fail_at(strict, error.byte > 0 ? error.byte - 1 : 0, shown_text(problem, kMaxProblemBytes));
  } catch (const Json::out_of_range& error) {
    fail_number(follower.path(), error.what());
  }
}

std::string shown(const Json& value) {
  return shown_text(value.dump(-1, ' ', false, Json::error_handler_t::replace));
}

}  // namespace zeroshard
