#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

namespace zeroshard {

// Puts copies between host memory and a device in order with the device's other work. The copies run while the host
// does something else. SliceData::begin_read() and begin_write() start the copies. Only one thread at a time may start
// copies.
class DeviceCopies {
 public:
  // Blocks the host until certain copies are complete. Throws errors of the device. Any thread may call it.
  using Wait = std::function<void()>;

  virtual ~DeviceCopies() = default;
  // Returns exactly `bytes` of host memory. The device can copy to and from this memory directly, if the system allows
  // it. Throws StateError if there is no memory. No copy may be running when the memory is freed.
  virtual std::shared_ptr<std::byte> host_memory(int64_t bytes) = 0;
  // Calls `begin`, which starts copies. The copies run one after another, after the work that the current stream
  // already has. With kBeforeLater, or if `begin` throws, later work of the current stream waits for the copies. With
  // kBesideLater, it does not wait.
  enum class Order : uint8_t { kBeforeLater, kBesideLater };
  virtual void in_order(const std::function<void()>& begin, Order order) = 0;
  // Returns a Wait for the copies that were started so far. Must be called within in_order().
  virtual Wait mark() = 0;
};

}  // namespace zeroshard
