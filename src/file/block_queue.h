#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "file/io.h"

namespace zeroshard {

struct BlockRequest {
  enum class Kind : uint8_t { kRead, kWrite };
  Kind kind = Kind::kRead;
  size_t file = 0;  // number in QueueFiles::fds
  std::byte* data = nullptr;
  int64_t bytes = 0, offset = 0;
  uint64_t tag = 0;  // of the caller's
};

struct BlockResult {
  uint64_t tag = 0;
  int64_t result = 0;  // bytes that were transferred, or -errno
};

// Many reads and writes of files under way at once. Only one thread may use it. Each request is tried once, as by
// pread(2) and pwrite(2): continuing and repeating is up to the caller (TransferQueue).
class BlockQueue {
 public:
  // Returns when no request is under way.
  virtual ~BlockQueue() = default;
  virtual std::string_view name() const = 0;
  // Never more than depth() requests may be under way. Their memory stays as it is until their results are collected.
  virtual void start(std::span<const BlockRequest> requests) = 0;
  // Appends the results that are there. With `wait`, returns not before there is one; some request must be under way.
  // Returns 0, or the -errno for which it could not wait.
  virtual int collect(bool wait, std::vector<BlockResult>& results) = 0;
};

// What a queue may use, and for how many requests. Files stay open and buffers in place while it exists.
struct QueueFiles {
  std::vector<int> fds;
  std::vector<std::span<std::byte>> buffers;  // the memory of most requests: registered where that is possible
  int depth = 32;
};

// The system calls of io_uring, so that tests can make any of them fail. Each returns its result or -errno.
class RingSystem {
 public:
  virtual ~RingSystem() = default;
  virtual int setup(unsigned entries, void* params) = 0;
  virtual int enter(int ring, unsigned to_submit, unsigned to_wait_for) = 0;
  virtual int register_with(int ring, unsigned what, const void* items, unsigned count) = 0;
  // Memory of the ring at `offset` that is shared with the kernel; null: refused.
  virtual void* map(int ring, size_t bytes, int64_t offset) = 0;
};
RingSystem& kernel_ring();

// By io_uring. Null where the system refuses that: `why` is then -errno.
std::unique_ptr<BlockQueue> make_ring_queue(const QueueFiles& files, RingSystem& system, int& why);
// By `threads` threads.
std::unique_ptr<BlockQueue> make_thread_queue(const QueueFiles& files, Io& io, int threads);
// By `ring`, or by threads where it is null or the system refuses it.
std::unique_ptr<BlockQueue> make_block_queue(const QueueFiles& files, RingSystem* ring, Io& io, int threads);

}  // namespace zeroshard
