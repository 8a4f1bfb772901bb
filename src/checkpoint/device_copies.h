#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

namespace zeroshard {

// Copies between host memory and a device that run while the host does something else. SliceData::begin_read() and
// begin_write() start them. Only one thread at a time may start copies.
class DeviceCopies {
 public:
  // Blocks the host until certain copies are complete. Throws errors of the device. Any thread may call it.
  using Wait = std::function<void()>;

  virtual ~DeviceCopies() = default;
  // Returns exactly `bytes` of host memory. The device can copy to and from this memory directly, if the system allows.
  // Throws StateError if there is no memory.
  virtual std::shared_ptr<std::byte> host_memory(int64_t bytes) = 0;
  // Calls `begin`, which starts copies. The copies run one after another, after the present work of the current stream.
  // With kBeforeLater they also run before later work of the current stream, even if `begin` throws.
  enum class Order : uint8_t { kBeforeLater, kBesideLater };
  virtual void in_order(const std::function<void()>& begin, Order order) = 0;
  // Returns a Wait for the copies that were started so far. Must be called within in_order().
  virtual Wait mark() = 0;
};

}  // namespace zeroshard
