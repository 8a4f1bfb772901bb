#pragma once
#include <chrono>
#include <thread>

#include "support/faulty_io.h"

namespace zeroshard::testing {

// Whether a call of that kind has been made, or is before the time is over.
inline bool calls_within(std::chrono::milliseconds time, const FaultyIo& io, IoOp op) {
  const auto end = std::chrono::steady_clock::now() + time;
  while (io.calls(op) == 0) {
    if (std::chrono::steady_clock::now() >= end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

}  // namespace zeroshard::testing
