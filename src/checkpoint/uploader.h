#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>

#include "checkpoint/slice_data.h"

namespace zeroshard {

// Copies loaded data to memory outside the host.
class Uploader {
 public:
  virtual ~Uploader() = default;
  // Returns the largest `bytes` that place() accepts.
  virtual int64_t max_bytes() const = 0;
  // Returns host memory of `bytes` for the caller to fill, aligned to 64 bytes.
  virtual std::byte* place(int64_t bytes) = 0;
  // Copies the memory of the last place() to `to`, from position `offset` on. The copy can happen now or later, but
  // before finish() returns.
  virtual void send(std::shared_ptr<SliceData> to, int64_t offset, int64_t bytes) = 0;
  virtual void finish() = 0;
};

}  // namespace zeroshard
