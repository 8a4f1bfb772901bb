#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "zeroshard/dtype.h"

// The one interface for collectives. Torch-free, so that the shared-memory transport runs under ThreadSanitizer.
namespace zeroshard {

// `numel` elements at `data`, in the memory of the communicator's device. Does not own them.
struct Span {
  void* data = nullptr;
  int64_t numel = 0;
  DType dtype = DType::kFloat32;
  int64_t bytes() const { return numel * element_size(dtype); }
};

struct ConstSpan {
  const void* data = nullptr;
  int64_t numel = 0;
  DType dtype = DType::kFloat32;
  ConstSpan(const void* data_, int64_t numel_, DType dtype_) : data(data_), numel(numel_), dtype(dtype_) {}
  ConstSpan(const Span& span) : data(span.data), numel(span.numel), dtype(span.dtype) {}  // NOLINT: implicit
  int64_t bytes() const { return numel * element_size(dtype); }
};

enum class ReduceOp : uint8_t { kSum, kMax };

// A started collective. wait() returns when its output can be used (on CUDA: by work queued on the current stream
// afterwards). It throws CommError naming the operation, its tag and the rank at fault. Calling it again does nothing.
// A Work that was never waited for may be destroyed only after an error.
//
// drain() also waits until every rank has read this rank's input, which may then be overwritten. It returns only when
// every rank waits for this collective, or for a later barrier, all_reduce or broadcast.
class Work {
 public:
  virtual ~Work() = default;
  virtual void wait() = 0;
  virtual void drain() { wait(); }
};

// Every rank's piece of a reduction, in rank order, for this rank to sum. Three steps:
//   wait()     the pieces can be read
//   release()  this rank has read them
//   drain()    every rank has read this rank's input, which may now be overwritten
// A transport that shares memory returns the peers' own buffers; others copy into scratch by an all-to-all.
class Exchange {
 public:
  virtual ~Exchange() = default;
  virtual void wait() = 0;
  // world_size pointers to input.numel / world_size elements each. Valid between wait() and release().
  virtual std::span<const void* const> pieces() const = 0;
  virtual void release() = 0;
  virtual void drain() = 0;
};

// Memory from Comm::allocate; freed with the object.
class Allocation {
 public:
  virtual ~Allocation() = default;
  virtual void* data() const = 0;
  virtual int64_t bytes() const = 0;
};

// Collectives among a fixed set of ranks. Every rank calls the same operations in the same order with the same sizes. A
// transport that can detect a difference reports it by CommError on all ranks, naming both sides. `tag` is for such
// messages: the name of the unit or of the purpose. One thread at a time. After a CommError the object is unusable, and
// every later call throws the same error.
//
// Any number of gathers, reduce_scatters, all_to_alls and all_to_all_vs may be outstanding; a transport with room for
// fewer completes the oldest within a later call. An output may be used after wait(), and may be written any time
// before. An input must stay unchanged until drain(), or until the *next* barrier, all_reduce or broadcast has
// completed. This rule lets a gather be one copy per byte, with no second synchronisation.
class Comm {
 public:
  virtual ~Comm() = default;

  virtual int rank() const = 0;
  virtual int world_size() const = 0;
  virtual std::string_view transport() const = 0;  // "shm", "gloo", "nccl", ...: printed at start
  // A communicator of the same ranks for the memory of the host: this one, or one beside it where this one is for a
  // device. What ranks agree on goes over it, so that nobody waits for a device.
  virtual Comm& host() { return *this; }

  // full = shard of rank 0, shard of rank 1, ... `shard` may be this rank's slice of `full`.
  virtual std::unique_ptr<Work> all_gather(Span full, ConstSpan shard, std::string_view tag) = 0;
  // out = this rank's slice of the sum over ranks, in the transport's own order ("native" reduction).
  virtual std::unique_ptr<Work> reduce_scatter(Span out, ConstSpan full, std::string_view tag) = 0;
  // out[r] = rank r's in[this rank]; equal pieces.
  virtual std::unique_ptr<Work> all_to_all(Span out, ConstSpan in, std::string_view tag) = 0;
  // Exchanges pieces of any sizes. `counts[from * world_size + to]` elements go from one rank to another; every rank
  // passes the same table. `in` has this rank's pieces, and `out` gets those for it, each in the order of ranks.
  virtual std::unique_ptr<Work> all_to_all_v(Span out, ConstSpan in, std::span<const int64_t> counts,
                                             std::string_view tag) = 0;
  // fp32, fp64 and kOther8 (int64) only. The sum is in rank order.
  virtual std::unique_ptr<Work> all_reduce(Span data, ReduceOp op, std::string_view tag) = 0;
  virtual std::unique_ptr<Work> broadcast(Span data, int root, std::string_view tag) = 0;
  virtual void barrier(std::string_view tag) = 0;

  // Starts an exchange of the pieces of `full` (world_size equal slices). `scratch` has full.numel elements if
  // exchange_needs_scratch(), and is ignored otherwise. `full` should come from allocate().
  virtual std::unique_ptr<Exchange> exchange(ConstSpan full, Span scratch, std::string_view tag) = 0;
  virtual bool exchange_needs_scratch() const = 0;

  // Zeroed memory that the transport can address directly, at least 64-byte aligned. Collective: every rank calls it in
  // the same order with the same size. Operations on other memory work too, at the cost of a copy.
  virtual std::unique_ptr<Allocation> allocate(int64_t bytes, std::string_view tag) = 0;

  // Whether a collective that failed, or was not waited for, may still write to its output. Then that output must not
  // be freed until the process ends; for memory from allocate() the communicator ensures this.
  virtual bool still_writes() const { return false; }

  // On a device, where no collective compares what ranks have called: a number that is the same on ranks that called
  // the same. The ranks compare it over host(). Nothing where differences are found without it.
  virtual std::optional<int64_t> history() const { return std::nullopt; }
  // The histories differ, as every rank has found: throws CommError that names the first difference.
  virtual void report_difference(std::string_view) {}
  // On a device: returns when the current stream has done what it was given; throws CommError if a rank that it needs
  // does not come. On the host, where every call waits for its own, at once.
  virtual void await_device(std::string_view) {}

  // Throws CommError if this rank knows that the communicator is broken.
  virtual void check() {}
  // Makes every rank's pending and future operations fail with `reason` (best effort). Called when this rank fails
  // outside a collective, so that no peer waits for it.
  virtual void abort(std::string_view reason) noexcept = 0;
};

}  // namespace zeroshard
