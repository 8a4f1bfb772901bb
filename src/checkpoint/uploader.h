#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>

#include "checkpoint/slice_data.h"

namespace zeroshard {

// Takes what is loaded to memory that is not the host's.
class Uploader {
 public:
  virtual ~Uploader() = default;
  // Of one place().
  virtual int64_t max_bytes() const = 0;
  // Memory of the host to fill, aligned to 64 bytes.
  virtual std::byte* place(int64_t bytes) = 0;
  // What was filled goes to `to`, from position `offset` on: now or later, and until finish() at the latest.
  virtual void send(std::shared_ptr<SliceData> to, int64_t offset, int64_t bytes) = 0;
  virtual void finish() = 0;
};

}  // namespace zeroshard
