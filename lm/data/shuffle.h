#pragma once
#include <cstdint>
#include <span>
#include <utility>

// Makes random orders that are the same with every compiler and library. Orders of std::shuffle differ between
// libraries, because the standard does not specify the algorithm.
namespace zeroshard {

// The SplitMix64 generator. The n-th number is a hash of the key and n.
class SplitMix64 {
 public:
  explicit SplitMix64(uint64_t key) : state_(key) {}

  uint64_t next() { return mix(state_ += UINT64_C(0x9E3779B97F4A7C15)); }
  // Returns a number in [0, bound). The probabilities of any two numbers differ by at most 2^-64.
  uint64_t below(uint64_t bound) {
    __extension__ using Wide = unsigned __int128;
    return uint64_t(Wide(next()) * bound >> 64);
  }

  static uint64_t mix(uint64_t value) {
    value = (value ^ (value >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    value = (value ^ (value >> 27)) * UINT64_C(0x94D049BB133111EB);
    return value ^ (value >> 31);
  }

 private:
  uint64_t state_;
};

// The purpose of a random order. Orders with the same seed and epoch are independent of each other if they have
// different purposes.
enum class Purpose : uint64_t { kSplit = 1, kDocuments = 2, kRows = 3 };

inline SplitMix64 generator(uint64_t seed, int64_t epoch, Purpose purpose) {
  return SplitMix64(SplitMix64::mix(SplitMix64::mix(SplitMix64::mix(seed + 1) ^ uint64_t(epoch)) ^ uint64_t(purpose)));
}

// Shuffles `values` by the method of Fisher and Yates.
template <typename Value>
void shuffle(std::span<Value> values, SplitMix64 random) {
  for (size_t i = values.size(); i > 1; --i) std::swap(values[i - 1], values[random.below(i)]);
}

}  // namespace zeroshard
