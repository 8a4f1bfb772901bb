#pragma once
#include <string_view>

namespace zeroshard {

enum class LogLevel { kDebug, kInfo, kWarning, kError };

// Writes one line to stderr: "[zeroshard] message", or "[zeroshard rank 2] message" once set_log_rank() was called. A
// warning or an error has "warning: " or "error: " before the message. Drops lines below the level in
// ZEROSHARD_LOG_LEVEL (debug, info, warning or error; info by default). Thread-safe.
void log(LogLevel level, std::string_view message);

// Sets the rank that each line shows. With -1, the default, lines show no rank.
void set_log_rank(int rank);

}  // namespace zeroshard
