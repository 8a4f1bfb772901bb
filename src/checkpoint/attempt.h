#pragma once
#include <exception>
#include <string>

#include "base/log.h"

namespace zeroshard {

// Runs a `step` whose failure must not fail its caller. If `step` throws a std::exception, the function logs
// `text_of(reason)` if there is memory for the text. The reason is the exception's message.
void attempt(const auto& step, const auto& text_of, LogLevel level = LogLevel::kWarning) noexcept {
  try {
    try {
      step();
    } catch (const std::exception& error) {
      log(level, text_of(std::string(error.what())));
    }
  } catch (const std::exception&) {  // there is no memory for the text or the log line
  }
}

}  // namespace zeroshard
