#include "launch/last_words.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string_view>

namespace zeroshard {
namespace {

constexpr size_t kMostLines = 20;
constexpr std::string_view kWhat = "what():", kOwn = "zeroshard: ";

std::string without_rank(const std::string& line) {
  if (!line.starts_with("[rank")) return line;
  const size_t end = line.find_first_not_of("0123456789", 5);
  if (end == 5 || line.compare(end, 2, "]:") != 0) return line;
  return line.substr(std::min(line.size(), end + 3));
}

// Returns whether the line is a log line of torch that is no error, such as "[W1127 19:00:48.356545006 socket.cpp:207]
// ...".
bool is_log_of_torch(std::string_view line) {
  return (line.starts_with("[W") || line.starts_with("[I")) && line.size() > 2 && line[2] >= '0' && line[2] <= '9';
}

bool says_nothing(const std::string& line) {
  const size_t begin = line.find_first_not_of(" \t");
  if (begin == line.npos) return true;
  const std::string_view text = std::string_view(line).substr(begin);
  return text.starts_with("frame #") || text.starts_with("Exception raised from ") || text.starts_with("[zeroshard") ||
         is_log_of_torch(text);
}

// Returns whether the line names an exception, as "RuntimeError: ...", "torch.OutOfMemoryError: ..." and
// "KeyboardInterrupt" do.
bool names_exception(const std::string& line) {
  const std::string_view name = std::string_view(line).substr(0, line.find(':'));
  if (name.empty() || name.find_first_of(" \t(\"'") != name.npos) return false;
  return name.ends_with("Error") || name.ends_with("Exception") || name.ends_with("Interrupt");
}

bool begins_error(const std::string& line) {
  return line.starts_with(kOwn) || line.find(kWhat) != line.npos || names_exception(line);
}

constexpr std::string_view kTraceback = "Traceback (most recent call last):";
using Lines = std::vector<std::string>;

// Returns the line after the frames of a traceback, which names the exception and precedes its notes. Returns `end` if
// that line is missing.
Lines::iterator end_of_frames(Lines::iterator traceback, const Lines::iterator end) {
  return std::find_if(traceback + 1, end, [](const std::string& line) { return line.front() != ' '; });
}

// Removes tracebacks that occur again later. A script that logs an exception and raises it again writes its traceback
// twice.
void drop_repeated_tracebacks(Lines& lines) {
  for (size_t i = 0; i < lines.size(); ++i) {
    if (lines[i] != kTraceback) continue;
    const auto begin = lines.begin() + ptrdiff_t(i), exception = end_of_frames(begin, lines.end());
    if (exception == lines.end()) return;
    if (std::search(exception + 1, lines.end(), begin, exception + 1) == lines.end()) continue;
    lines.erase(begin, exception + 1);
    --i;
  }
}

// Returns the first line of the error that ended the rank, or the end of `lines` if there is no error. Without a
// traceback, it is the last line that looks like the beginning of an error. With a traceback, it is the line after the
// frames of the last traceback, which names the exception. Later lines do not count then, because the notes of the
// exception can look like errors, too. But if an error of C++ or of zeroshard itself comes after the exception, it is
// the first line of that error.
Lines::iterator beginning_of_error(Lines& lines) {
  const auto named = std::find_if(lines.rbegin(), lines.rend(), begins_error);
  const auto traceback = std::find(lines.rbegin(), lines.rend(), kTraceback);
  const auto last = named == lines.rend() ? lines.end() : named.base() - 1;
  if (traceback == lines.rend()) return last;
  const auto exception = end_of_frames(traceback.base() - 1, lines.end());
  const bool is_native = last != lines.end() && (last->find(kWhat) != std::string::npos || last->starts_with(kOwn));
  return exception == lines.end() || (is_native && last > exception) ? last : exception;
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
  drop_repeated_tracebacks(told);
  const auto error = beginning_of_error(told);
  const auto begin = error == told.end() ? told.end() - 1 : error;
  words.message.assign(begin, begin + std::min<ptrdiff_t>(told.end() - begin, kMostLines));
  if (const size_t what = words.message.front().find(kWhat); what != std::string::npos) {
    const size_t text = words.message.front().find_first_not_of(' ', what + kWhat.size());
    words.message.front() = text == std::string::npos ? "" : words.message.front().substr(text);
  }
  words.before.assign(begin - std::min<ptrdiff_t>(begin - told.begin(), kMostLines), begin);
  return words;
}

}  // namespace zeroshard
