#pragma once
#include <chrono>
#include <thread>

#include "support/faulty_io.h"

namespace zeroshard::testing {

// Whether a condition holds, or does before the time is over.
template <typename Condition>
bool holds_within(std::chrono::milliseconds time, const Condition& condition) {
  const auto end = std::chrono::steady_clock::now() + time;
  while (!condition()) {
    if (std::chrono::steady_clock::now() >= end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

// Whether a call of that kind is made in that time.
inline bool calls_within(std::chrono::milliseconds time, const FaultyIo& io, IoOp op) {
  return holds_within(time, [&] { return io.calls(op) > 0; });
}

}  // namespace zeroshard::testing
