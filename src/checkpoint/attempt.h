#pragma once
#include <exception>
#include <string>

#include "base/log.h"

namespace zeroshard {

// For what must not fail what it is a part of: runs `step`; when that throws, `text_of(reason)` is logged, as far as
// there is memory for a text.
void attempt(const auto& step, const auto& text_of, LogLevel level = LogLevel::kWarning) noexcept {
  try {
    try {
      step();
    } catch (const std::exception& error) {
      log(level, text_of(std::string(error.what())));
    }
  } catch (const std::exception&) {  // the text or the line found no memory
  }
}

}  // namespace zeroshard
