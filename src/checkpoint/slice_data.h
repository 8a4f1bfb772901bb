#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>

namespace zeroshard {

// Gives access to the bytes of slices that are saved or loaded, in host memory, device memory, or another place.
// Several slices may share one SliceData.
class SliceData {
 public:
  virtual ~SliceData() = default;
  // read() and write() copy `bytes` bytes of the data, from byte `offset` on, to or from host memory. The copy is
  // complete when they return.
  virtual void read(int64_t offset, int64_t bytes, void* to) const = 0;
  virtual void write(int64_t offset, int64_t bytes, const void* from) = 0;
  // begin_read() and begin_write() start the same copies. If the data is in device memory, the device's current stream
  // makes the copy. The copy is complete when a DeviceCopies::Wait for it returns. Until then nobody may use `to` or
  // change `from`. For other data, the copy is complete when the functions return.
  virtual void begin_read(int64_t offset, int64_t bytes, void* to) const { read(offset, bytes, to); }
  // Returns whether code that later changes the data waits by itself for a copy of begin_read().
  virtual bool writers_wait() const { return false; }
  virtual void begin_write(int64_t offset, int64_t bytes, const void* from) { write(offset, bytes, from); }
  // Returns whether the bytes stay unchanged until end_reading() is called. If so, a background save need not copy them
  // before training continues.
  virtual bool is_held() const { return false; }
  // A save calls this function when it has read everything that it needs, or when an error ends its reading. It can
  // call the function several times. A save that fails before it begins to read does not call it.
  virtual void end_reading() noexcept {}
  // Returns the address of the first byte if all bytes are in host memory and stay there. Otherwise returns null.
  virtual std::byte* on_host() const { return nullptr; }
};

// Gives access to host memory that the object does not own.
class HostData final : public SliceData {
 public:
  explicit HostData(void* memory) : memory_(static_cast<std::byte*>(memory)) {}
  void read(int64_t offset, int64_t bytes, void* to) const override {
    std::memcpy(to, memory_ + offset, size_t(bytes));
  }
  void write(int64_t offset, int64_t bytes, const void* from) override {
    std::memcpy(memory_ + offset, from, size_t(bytes));
  }
  std::byte* on_host() const override { return memory_; }

 private:
  std::byte* memory_;
};

inline std::shared_ptr<SliceData> host_data(void* memory) {
  return std::make_shared<HostData>(memory);
}

}  // namespace zeroshard
