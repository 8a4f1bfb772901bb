#pragma once
#include <cstdlib>
#include <string_view>

namespace zeroshard::testing {

// Whether the figures of a release are asked for (ZEROSHARD_TEST_RELEASE=1), instead of a sample.
inline bool release() {
  const char* const value = std::getenv("ZEROSHARD_TEST_RELEASE");
  return value != nullptr && std::string_view(value) == "1";
}

}  // namespace zeroshard::testing
