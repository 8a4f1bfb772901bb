#pragma once
#include <cstddef>
#include <cstdint>

namespace zeroshard {

// A place of bytes: the memory of the device that computes, the host's memory, or a file. On a rank whose device is the
// CPU, the host's memory counts as the device's.
enum class Tier : uint8_t { kDevice, kHost, kFile };
inline constexpr size_t kNumTiers = 3;

}  // namespace zeroshard
