#pragma once
#include <string_view>

namespace zeroshard {

enum class LogLevel { kDebug, kInfo, kWarning, kError };

// Writes one line to stderr: "[zeroshard] message", or "[zeroshard rank 2] message" once set_log_rank was called.
// Lines below ZEROSHARD_LOG_LEVEL (debug, info, warning, error; default info) are dropped. Thread-safe.
void log(LogLevel level, std::string_view message);

// Sets the rank that each line shows; -1 (the default) shows none.
void set_log_rank(int rank);

}  // namespace zeroshard
