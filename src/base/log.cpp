#include "base/log.h"

#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <string>

namespace zeroshard {
namespace {

std::atomic<int> log_rank{-1};  // used only in messages

LogLevel threshold() {
  const char* text = std::getenv("ZEROSHARD_LOG_LEVEL");
  const std::string_view name = text ? text : "info";
  if (name == "debug") return LogLevel::kDebug;
  if (name == "warning") return LogLevel::kWarning;
  if (name == "error") return LogLevel::kError;
  return LogLevel::kInfo;
}

std::string_view prefix(LogLevel level) {
  if (level == LogLevel::kWarning) return "warning: ";
  if (level == LogLevel::kError) return "error: ";
  return "";
}

}  // namespace

void set_log_rank(int rank) {
  log_rank = rank;
}

void log(LogLevel level, std::string_view message) {
  if (level < threshold()) return;
  std::string line = "[zeroshard";
  if (log_rank >= 0) line += " rank " + std::to_string(log_rank);
  line.append("] ").append(prefix(level)).append(message).append("\n");
  // The line is written by a single write, so that lines of several ranks do not mix.
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, line.data(), line.size());
}

}  // namespace zeroshard
