#pragma once
#include <c10/util/Exception.h>

#include <functional>
#include <stdexcept>

namespace zeroshard::cli {

// Runs `run`. Errors of LibTorch are rethrown with only their message, without stack frames.
inline void without_frames(const std::function<void()>& run) {
  try {
    run();
  } catch (const c10::Error& error) {
    throw std::runtime_error(error.what_without_backtrace());
  }
}

}  // namespace zeroshard::cli
