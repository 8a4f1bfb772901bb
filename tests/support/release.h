#pragma once
#include <cstdlib>
#include <string_view>

// How much the tests with large tables do. Without a variable they do what `make test-all` does.
namespace zeroshard::testing {

inline bool is_set(const char* variable) {
  const char* const value = std::getenv(variable);
  return value != nullptr && std::string_view(value) == "1";
}

// Whether the figures of a release are asked for, instead of a sample.
inline bool release() {
  return is_set("ZEROSHARD_TEST_RELEASE");
}

// Whether a small part is enough, as for `make test`: one case of each table. See sampled_main.cpp.
inline bool sample() {
  return is_set("ZEROSHARD_TEST_SAMPLE");
}

}  // namespace zeroshard::testing
