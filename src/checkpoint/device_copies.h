#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

namespace zeroshard {

// Copies between the host's memory and a device that go on while the host does something else: those that
// SliceData::begin_read() and begin_write() begin. One thread at a time begins copies.
class DeviceCopies {
 public:
  // Waits on the host until certain copies are complete. Throws what went wrong with the device. From any thread.
  using Wait = std::function<void()>;

  virtual ~DeviceCopies() = default;
  // Exactly `bytes` of the host's memory, which the device can copy to and from by itself where the system allows.
  // Throws StateError when there is none.
  virtual std::shared_ptr<std::byte> host_memory(int64_t bytes) = 0;
  // Calls `begin`. The copies that it begins run one after the other, after all that the device was given on the
  // current stream. With kBeforeLater they run before what the current stream is given later, also when `begin` throws.
  enum class Order : uint8_t { kBeforeLater, kBesideLater };
  virtual void in_order(const std::function<void()>& begin, Order order) = 0;
  // For the copies that were begun so far. Within in_order().
  virtual Wait mark() = 0;
};

}  // namespace zeroshard
