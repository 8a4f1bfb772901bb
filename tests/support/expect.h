#pragma once
#include <gtest/gtest.h>

#include <chrono>
#include <initializer_list>
#include <string>

namespace zeroshard::testing {

using Clock = std::chrono::steady_clock;

inline double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// The text of an error says all of `parts`.
inline void expect_contains(const std::string& text, std::initializer_list<std::string> parts) {
  for (const std::string& part : parts)
    EXPECT_NE(text.find(part), std::string::npos) << "'" << part << "' in: " << text;
}

}  // namespace zeroshard::testing
