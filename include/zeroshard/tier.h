#pragma once
#include <array>
#include <cstddef>
#include <cstdint>

namespace zeroshard {

// Says where bytes lie: in the memory of the device that computes, in the host's memory, or in a file. On a rank whose
// device is the CPU, the host's memory counts as the device's.
enum class Tier : uint8_t { kDevice, kHost, kFile };
inline constexpr std::array kTiers = {Tier::kDevice, Tier::kHost, Tier::kFile};
inline constexpr size_t kNumTiers = kTiers.size();
// Returns the tier to which the host's memory belongs. `on_device` is false if the rank's device is the CPU.
constexpr Tier host_tier(bool on_device) {
  return on_device ? Tier::kHost : Tier::kDevice;
}

}  // namespace zeroshard
