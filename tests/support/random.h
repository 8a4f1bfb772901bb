#pragma once
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <limits>
#include <numeric>
#include <optional>
#include <source_location>
#include <string>
#include <vector>

namespace zeroshard::testing {

// The random numbers of a seed, by SplitMix64: a seed costs nothing. A generator for std::shuffle, too.
class Random {
 public:
  using result_type = uint64_t;
  explicit Random(uint64_t seed) : state_(seed) {}

  static constexpr result_type min() { return 0; }
  static constexpr result_type max() { return std::numeric_limits<result_type>::max(); }
  result_type operator()() {
    uint64_t z = (state_ += 0x9e3779b97f4a7c15U);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9U;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebU;
    return z ^ (z >> 31);
  }

  // Both are possible.
  int between(int low, int high) { return low + static_cast<int>((*this)() % static_cast<uint64_t>(high - low + 1)); }
  // At least -1, below 1; a whole number of 2^-23.
  float fraction() { return static_cast<float>((*this)() >> 40) * 0x1p-23F - 1; }

 private:
  uint64_t state_;
};

// ZEROSHARD_TEST_SEED: the seed of a failure, to run its test again with that alone.
inline std::optional<uint64_t> asked_seed() {
  const char* const value = std::getenv("ZEROSHARD_TEST_SEED");
  return value == nullptr ? std::nullopt : std::optional<uint64_t>(std::strtoull(value, nullptr, 10));
}

// 0 to count - 1, or the one asked for.
inline std::vector<uint64_t> seeds(uint64_t count) {
  if (const auto asked = asked_seed()) return {*asked};
  std::vector<uint64_t> all(count);
  std::iota(all.begin(), all.end(), uint64_t{0});
  return all;
}

// What a test draws, by its own seed or the one asked for: a failure while it lives, on its thread, says the seed.
class SeededRandom : public Random {
 public:
  explicit SeededRandom(uint64_t seed, std::source_location where = std::source_location::current())
      : SeededRandom(where, asked_seed().value_or(seed)) {}

 private:
  SeededRandom(std::source_location where, uint64_t seed)
      : Random(seed), trace_(where.file_name(), static_cast<int>(where.line()), "seed " + std::to_string(seed)) {}

  ::testing::ScopedTrace trace_;
};

}  // namespace zeroshard::testing
