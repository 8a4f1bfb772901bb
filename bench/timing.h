#pragma once
#include <algorithm>
#include <chrono>
#include <vector>

namespace zeroshard::bench {

// Seconds.
double time_of(const auto& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// The upper one of an even number of values. There must be one.
inline double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

}  // namespace zeroshard::bench
