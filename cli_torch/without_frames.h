#pragma once
#include <c10/util/Exception.h>

#include <functional>
#include <stdexcept>

namespace zeroshard::cli {

// Calls `run`. Rethrows an error of LibTorch as std::runtime_error with its message alone, without the stack frames.
inline void without_frames(const std::function<void()>& run) {
  try {
    run();
  } catch (const c10::Error& error) {
    throw std::runtime_error(error.what_without_backtrace());
  }
}

}  // namespace zeroshard::cli
