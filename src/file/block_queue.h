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
  size_t file = 0;  // index into QueueFiles::fds
  std::byte* data = nullptr;
  int64_t bytes = 0, offset = 0;
  uint64_t tag = 0;  // number that the caller has chosen
};

struct BlockResult {
  // The result of the request that has the same tag.
  uint64_t tag = 0;
  int64_t result = 0;  // bytes that were transferred, or -errno
};

// Runs many reads and writes of files at a time. Only one thread may use a queue. Each request is tried once, like
// pread(2) and pwrite(2). The caller (TransferQueue) continues and repeats requests.
class BlockQueue {
 public:
  // Waits until no request is running.
  virtual ~BlockQueue() = default;
  virtual std::string_view name() const = 0;
  // Starts requests. At most QueueFiles::depth requests may be running. The memory of a request must not change before
  // its result is collected.
  virtual void start(std::span<const BlockRequest> requests) = 0;
  // Appends the available results. If `wait` is true, some request must be running, and the call returns when there is
  // at least one result. Returns 0, or the -errno of a wait that failed.
  virtual int collect(bool wait, std::vector<BlockResult>& results) = 0;
};

// The files, buffers and depth of a queue. The files must stay open, and the buffers allocated, while the queue exists.
struct QueueFiles {
  std::vector<int> fds;
  // The memory of most requests. The queue registers it with the kernel if possible.
  std::vector<std::span<std::byte>> buffers;
  int depth = 32;
};

// The system calls of io_uring, so that tests can make any of them fail. Each returns its result or -errno.
class RingSystem {
 public:
  virtual ~RingSystem() = default;
  virtual int setup(unsigned entries, void* params) = 0;
  virtual int enter(int ring, unsigned to_submit, unsigned to_wait_for) = 0;
  virtual int register_with(int ring, unsigned what, const void* items, unsigned count) = 0;
  // Maps the memory at `offset` that the ring shares with the kernel. Returns null if the kernel refuses.
  virtual void* map(int ring, size_t bytes, int64_t offset) = 0;
};
RingSystem& kernel_ring();

// Creates a queue that uses io_uring. If the system refuses io_uring, returns null and sets `why` to -errno.
std::unique_ptr<BlockQueue> make_ring_queue(const QueueFiles& files, RingSystem& system, int& why);
// Creates a queue that uses `threads` threads.
std::unique_ptr<BlockQueue> make_thread_queue(const QueueFiles& files, Io& io, int threads);
// Creates a queue that uses io_uring through `ring`. If `ring` is null or the system refuses io_uring, the queue uses
// `threads` threads.
std::unique_ptr<BlockQueue> make_block_queue(const QueueFiles& files, RingSystem* ring, Io& io, int threads);

}  // namespace zeroshard
