#include "ssh_words.h"

#include <string_view>

#include "base/check.h"
#include "base/shown_text.h"

namespace zeroshard::cli {
namespace {

constexpr std::string_view kWithValue = "BbcDEeFIiJLlmopPRSw", kWithout = "46AaCgKkMqTvXxYy";

// Returns whether the word after `word` is the value of an option in `word`. Throws ValueError if `word` is not an
// allowed option of ssh.
bool takes_next(const std::string& word) {
  const bool is_option = word.size() > 1 && word[0] == '-';
  for (size_t i = 1; is_option && i < word.size(); ++i) {
    if (kWithValue.find(word[i]) != kWithValue.npos) return i + 1 == word.size();
    ZS_CHECK(kWithout.find(word[i]) != kWithout.npos, "--launcher_args has ", shown_text(word), ", and ssh's -",
             word[i], " would keep zeroshard from starting on the hosts: leave it out");
  }
  ZS_CHECK(is_option, "--launcher_args has the word ", shown_text(word),
           ", expected options of ssh and their values; the hosts are those of --hostfile");
  return false;
}

}  // namespace

std::vector<std::string> launcher_words(const std::string& text) {
  std::vector<std::string> words;
  bool in_word = false;
  char quote = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    const bool is_space = quote == 0 && (c == ' ' || c == '\t' || c == '\n' || c == '\r');
    if (is_space) {
      in_word = false;
      continue;
    }
    if (!in_word) words.emplace_back();
    in_word = true;
    const char next = i + 1 < text.size() ? text[i + 1] : 0;
    const bool escapes = c == '\\' && next != 0 && (quote == 0 || (quote == '"' && (next == '"' || next == '\\')));
    if (escapes) {
      words.back() += text[++i];
    } else if (c == quote) {
      quote = 0;
    } else if (quote == 0 && (c == '"' || c == '\'')) {
      quote = c;
    } else {
      words.back() += c;
    }
  }
  ZS_CHECK(quote == 0, "--launcher_args is ", shown_text(text), ", whose quote ", quote, " does not end");
  return words;
}

std::vector<std::string> ssh_words(const std::string& text) {
  std::vector<std::string> words = launcher_words(text);
  for (size_t i = 0; i < words.size(); ++i) {
    if (!takes_next(words[i])) continue;
    ZS_CHECK(++i < words.size(), "--launcher_args ends with ", shown_text(words.back()), ", whose value is missing");
  }
  return words;
}

}  // namespace zeroshard::cli
