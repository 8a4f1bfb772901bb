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
  uint64_t tag = 0;  // a number that the caller chooses for this request
};

struct BlockResult {
  // The tag of the request that has ended.
  uint64_t tag = 0;
  int64_t result = 0;  // bytes that were transferred, or -errno
};

// Runs many reads and writes of files at a time. Only one thread at a time may use a queue. Each request is tried once,
// like pread(2) and pwrite(2). The caller (TransferQueue) requests the rest of a short transfer, and repeats a request
// that was interrupted.
class BlockQueue {
 public:
  // Waits until all started requests have ended, and drops their results.
  virtual ~BlockQueue() = default;
  virtual std::string_view name() const = 0;
  // Starts requests. A request runs until its result is collected, and at most QueueFiles::depth requests may run at a
  // time. The caller must neither change nor free the memory of a running request.
  virtual void start(std::span<const BlockRequest> requests) = 0;
  // Appends the available results to `results`. If `wait` is true, waits until there is at least one; some request must
  // be running then. Returns 0, or -errno if the wait failed.
  virtual int collect(bool wait, std::vector<BlockResult>& results) = 0;
};

// The files, buffers and depth of a queue. The files must stay open, and the buffers allocated, while the queue exists.
struct QueueFiles {
  std::vector<int> fds;
  // The memory of most requests. Requests may use other memory, too. A queue that uses io_uring registers these buffers
  // with the kernel if possible, which saves work for each request.
  std::vector<std::span<std::byte>> buffers;
  int depth = 32;
};

// The system calls of io_uring. They are an interface, so that tests can make any of them fail. Each function except
// map() returns the result of its call or -errno.
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

// Creates a queue that uses io_uring, and sets `why` to 0. If the system refuses io_uring, returns null and sets `why`
// to -errno.
std::unique_ptr<BlockQueue> make_ring_queue(const QueueFiles& files, RingSystem& system, int& why);
// Creates a queue whose requests run in `threads` threads, or in QueueFiles::depth threads if that is fewer. `threads`
// must be positive. If the system does not start all of these threads, the queue uses fewer. If it starts none, start()
// itself runs the requests.
std::unique_ptr<BlockQueue> make_thread_queue(const QueueFiles& files, Io& io, int threads);
// Creates a queue that uses io_uring through `ring`. If `ring` is null or the system refuses io_uring, creates the
// queue of make_thread_queue() instead.
std::unique_ptr<BlockQueue> make_block_queue(const QueueFiles& files, RingSystem* ring, Io& io, int threads);

}  // namespace zeroshard
