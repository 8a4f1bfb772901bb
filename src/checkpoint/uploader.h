#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>

#include "checkpoint/slice_data.h"

namespace zeroshard {

// Copies loaded data to slices that are not in host memory.
class Uploader {
 public:
  virtual ~Uploader() = default;
  // Returns the largest `bytes` that place() accepts.
  virtual int64_t max_bytes() const = 0;
  // Returns host memory of `bytes` for the caller to fill, aligned to 64 bytes.
  virtual std::byte* place(int64_t bytes) = 0;
  // Copies `bytes` bytes from the memory of the last place() to `to`, beginning at byte `offset` of `to`. The copy is
  // made or queued on a device at any time before finish() returns. Copies are made in the order of the calls.
  virtual void send(std::shared_ptr<SliceData> to, int64_t offset, int64_t bytes) = 0;
  // Makes or queues the copies that are left. Work that the current stream of the device gets later sees the data.
  virtual void finish() = 0;
};

}  // namespace zeroshard
