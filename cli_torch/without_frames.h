#pragma once
#include <c10/util/Exception.h>

#include <functional>
#include <stdexcept>

namespace zeroshard::cli {

// Runs `run`. An error of LibTorch's comes out as its message alone, without the frames of the stack.
inline void without_frames(const std::function<void()>& run) {
  try {
    run();
  } catch (const c10::Error& error) {
    throw std::runtime_error(error.what_without_backtrace());
  }
}

}  // namespace zeroshard::cli
