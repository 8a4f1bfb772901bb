#include "launch/last_words.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string_view>

namespace zeroshard {
namespace {

constexpr size_t kMostLines = 20;
constexpr std::string_view kWhat = "what():";

std::string without_rank(const std::string& line) {
  if (!line.starts_with("[rank")) return line;
  const size_t end = line.find_first_not_of("0123456789", 5);
  if (end == 5 || line.compare(end, 2, "]:") != 0) return line;
  return line.substr(std::min(line.size(), end + 3));
}

bool says_nothing(const std::string& line) {
  const size_t begin = line.find_first_not_of(" \t");
  if (begin == line.npos) return true;
  const std::string_view text = std::string_view(line).substr(begin);
  return text.starts_with("frame #") || text.starts_with("Exception raised from ") || text.starts_with("[zeroshard");
}

// "RuntimeError: ...", "torch.OutOfMemoryError: ...", "KeyboardInterrupt"
bool names_exception(const std::string& line) {
  const std::string_view name = std::string_view(line).substr(0, line.find(':'));
  if (name.empty() || name.find_first_of(" \t(\"'") != name.npos) return false;
  return name.ends_with("Error") || name.ends_with("Exception") || name.ends_with("Interrupt");
}

bool begins_error(const std::string& line) {
  return line.starts_with("zeroshard: ") || line.find(kWhat) != line.npos || names_exception(line);
}

}  // namespace

LastWords last_words(const std::vector<std::string>& lines) {
  std::vector<std::string> told;
  LastWords words;
  for (const std::string& line : lines) {
    std::string text = without_rank(line);
    words.is_last = !says_nothing(text);
    if (words.is_last) told.push_back(std::move(text));
  }
  if (told.empty()) return {};
  const auto last = std::find_if(told.rbegin(), told.rend(), begins_error);
  const auto begin = last == told.rend() ? told.end() - 1 : last.base() - 1;
  words.message.assign(begin, begin + std::min<ptrdiff_t>(told.end() - begin, kMostLines));
  if (const size_t what = words.message.front().find(kWhat); what != std::string::npos) {
    const size_t text = words.message.front().find_first_not_of(' ', what + kWhat.size());
    words.message.front() = text == std::string::npos ? "" : words.message.front().substr(text);
  }
  words.before.assign(begin - std::min<ptrdiff_t>(begin - told.begin(), kMostLines), begin);
  return words;
}

}  // namespace zeroshard
