#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "zeroshard/dtype.h"

// The only interface for collectives. It does not use torch, so that the shared-memory transport runs under
// ThreadSanitizer.
namespace zeroshard {

// A view of `numel` elements at `data`, in the memory of the communicator's device. Does not own the elements.
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
// afterwards). It throws CommError that names the operation, its tag and the rank at fault. A second call does nothing.
// A Work that was never waited for may be destroyed only after an error.
//
// drain() also waits until every rank has read this rank's input, which may then be overwritten. It returns only if
// every rank also waits for this collective, or for a later barrier, all_reduce or broadcast.
class Work {
 public:
  virtual ~Work() = default;
  virtual void wait() = 0;
  virtual void drain() { wait(); }
};

// Gives this rank all ranks' pieces of a reduction, in rank order, so that it can sum them. Three steps:
//   wait()     the pieces can be read
//   release()  this rank has read them
//   drain()    every rank has read this rank's input, which may now be overwritten
// A transport over shared memory returns the peers' own buffers. Other transports copy the pieces into scratch by an
// all-to-all.
class Exchange {
 public:
  virtual ~Exchange() = default;
  virtual void wait() = 0;
  // Returns pointers to input.numel / world_size elements each, valid between wait() and release(): one for each rank
  // in the input's dtype, or one in fp32 for each host, if the transport has summed the pieces of the host's ranks. All
  // are summed alike, because the sums of hosts are nodes of the tree that sum_in_order() adds.
  virtual std::span<const void* const> pieces() const = 0;
  virtual DType dtype() const = 0;
  virtual void release() = 0;
  virtual void drain() = 0;
};

// Memory from Comm::allocate. It is freed with the object.
class Allocation {
 public:
  virtual ~Allocation() = default;
  virtual void* data() const = 0;
  virtual int64_t bytes() const = 0;
};

// Collectives among a fixed set of ranks. Every rank calls the same operations in the same order with the same sizes. A
// transport that can detect a difference throws CommError on all ranks; the message names both sides. `tag` is used in
// such messages: it names the unit or the purpose. Used by one thread at a time. After a CommError the object is
// unusable, and every later call throws the same error.
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
  // Returns a communicator of the same ranks for host memory: this one, or a second one if this one is for a device.
  // Ranks agree over it, so that nobody waits for a device.
  virtual Comm& host() { return *this; }

  // full = shard of rank 0, shard of rank 1, ... `shard` may be this rank's slice of `full`.
  virtual std::unique_ptr<Work> all_gather(Span full, ConstSpan shard, std::string_view tag) = 0;
  // out = this rank's slice of the sum over ranks, in the transport's own order ("native" reduction).
  virtual std::unique_ptr<Work> reduce_scatter(Span out, ConstSpan full, std::string_view tag) = 0;
  // out[r] = rank r's in[this rank]. All pieces are equally large.
  virtual std::unique_ptr<Work> all_to_all(Span out, ConstSpan in, std::string_view tag) = 0;
  // Exchanges pieces of any sizes. Rank `from` sends `counts[from * world_size + to]` elements to rank `to`. Every rank
  // passes the same table. `in` has the pieces that this rank sends, and `out` gets the pieces sent to it, each in rank
  // order.
  virtual std::unique_ptr<Work> all_to_all_v(Span out, ConstSpan in, std::span<const int64_t> counts,
                                             std::string_view tag) = 0;
  // Only for fp32, fp64 and kOther8 (int64). Sums in the canonical order.
  virtual std::unique_ptr<Work> all_reduce(Span data, ReduceOp op, std::string_view tag) = 0;
  virtual std::unique_ptr<Work> broadcast(Span data, int root, std::string_view tag) = 0;
  virtual void barrier(std::string_view tag) = 0;

  // Starts an exchange of the pieces of `full` (world_size equal slices). `scratch` has full.numel elements if
  // exchange_needs_scratch(), and is ignored otherwise. `full` should come from allocate().
  virtual std::unique_ptr<Exchange> exchange(ConstSpan full, Span scratch, std::string_view tag) = 0;
  virtual bool exchange_needs_scratch() const = 0;

  // Returns zeroed memory that the transport can address directly, aligned to at least 64 bytes. Collective: every rank
  // calls it in the same order with the same size. Operations on other memory work too, but they copy.
  virtual std::unique_ptr<Allocation> allocate(int64_t bytes, std::string_view tag) = 0;

  // Returns whether a collective that failed, or was not waited for, may still write to its output. If so, that output
  // must not be freed until the process ends. For memory from allocate() the communicator ensures this.
  virtual bool still_writes() const { return false; }

  // For a device, whose collectives do not compare what ranks have called: returns a number that is equal on ranks that
  // called the same collectives. The ranks compare it over host(). Returns nothing if differences are found without it.
  virtual std::optional<int64_t> history() const { return std::nullopt; }
  // Called when every rank knows that the histories differ. Throws CommError that names the first difference.
  virtual void report_difference(std::string_view) {}
  // On a device: returns when the current stream has done its work. Throws CommError if a rank that the work needs does
  // not come. On the CPU it returns at once, because every call waits for its own work there.
  virtual void await_device(std::string_view) {}

  // Throws CommError if this rank knows that the communicator is broken.
  virtual void check() {}
  // Makes pending and future operations of every rank fail with `reason` (best effort). Called when this rank fails
  // outside a collective, so that no peer waits for it.
  virtual void abort(std::string_view reason) noexcept = 0;
};

}  // namespace zeroshard
