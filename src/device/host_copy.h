#pragma once
#include <c10/core/Device.h>

#include <cstdint>
#include <functional>

#include "device/streams.h"

namespace zeroshard {

// Copies memory of `device` into host memory and waits for it; on the CPU with all threads.
void copy_to_host(void* to, const void* from, int64_t bytes, c10::Device device);
void copy_from_host(void* to, const void* from, int64_t bytes, c10::Device device);

// The same, by the device's current stream, for which the host waits only if its memory is not pinned. The CPU has
// copied when they return.
void begin_copy_to_host(void* to, const void* from, int64_t bytes, c10::Device device);
void begin_copy_from_host(void* to, const void* from, int64_t bytes, c10::Device device);

// The stream for copies between the host and a device. Not for the CPU.
class HostCopyStream {
 public:
  explicit HostCopyStream(c10::Device device) : stream_(device) {}

  // Calls `begin` with the stream current. It then follows what the current stream was given so far. With `joins`, what
  // that is given later follows it, also when `begin` throws.
  void in_order(const std::function<void()>& begin, bool joins);
  // Returns what waits, on the host and from any thread, for what the stream was given so far.
  std::function<void()> mark() const;

 private:
  SideStream stream_;
};

}  // namespace zeroshard
