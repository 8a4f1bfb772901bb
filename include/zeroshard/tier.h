#pragma once
#include <cstddef>
#include <cstdint>

namespace zeroshard {

// Where bytes lie: in the memory of the device that computes, in the host's beside it, or in a file. On a rank whose
// device is the CPU, the host's memory is the device's.
enum class Tier : uint8_t { kDevice, kHost, kFile };
inline constexpr size_t kNumTiers = 3;

}  // namespace zeroshard
