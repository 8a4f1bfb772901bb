#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "zeroshard/dtype.h"

// The only interface for collectives. It does not use torch, so that the shared-memory transport can run under
// ThreadSanitizer.
namespace zeroshard {

// A view of `numel` elements at `data`, in the memory of the communicator's device. The view does not own the elements.
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

// A started collective. wait() returns when the output can be used (on CUDA: by work that is queued on the current
// stream after the call). wait() throws CommError if the collective fails. The message names the operation, its tag and
// the rank at fault. A second call of wait() does nothing. A Work that was never waited for may be destroyed only after
// an error.
//
// drain() also waits until every rank has read this rank's input. Afterwards the input may be overwritten. drain()
// blocks until every other rank has called wait() for this collective, or for a later all_reduce or broadcast, or has
// called a later barrier().
class Work {
 public:
  virtual ~Work() = default;
  virtual void wait() = 0;
  virtual void drain() { wait(); }
};

// One rank's part of a reduction. Every rank contributes a piece to this rank's slice, and this rank gets the pieces in
// rank order, so that it can add them. Three calls, in this order:
// - wait() returns when the pieces can be read.
// - release() says that this rank has read the pieces.
// - drain() returns when every rank has read this rank's input, which may then be overwritten.
// A transport over shared memory returns addresses of the peers' inputs, or of copies of inputs that do not lie in
// memory from allocate(). Other transports collect the pieces in scratch.
class Exchange {
 public:
  virtual ~Exchange() = default;
  virtual void wait() = 0;
  // Returns pointers to pieces of input.numel / world_size elements, valid between wait() and release(). Usually there
  // is one piece for each rank, in the input's dtype. A transport that has already summed the pieces of each host's
  // ranks returns one fp32 piece for each host. The caller adds the pieces in the same way in both cases, because the
  // sums of hosts are nodes of the tree that sum_in_order() adds.
  virtual std::span<const void* const> pieces() const = 0;
  virtual DType dtype() const = 0;
  virtual void release() = 0;
  virtual void drain() = 0;
};

// Memory from Comm::allocate(). The memory is freed with the object, unless Comm::still_writes() is true.
class Allocation {
 public:
  virtual ~Allocation() = default;
  virtual void* data() const = 0;
  virtual int64_t bytes() const = 0;
};

// Collectives among a fixed set of ranks. Every rank must call the same operations in the same order with the same
// sizes. A transport that can detect a difference throws CommError on all ranks, with a message that names both sides.
// Such messages contain `tag`, which names the unit or the purpose. One thread at a time may use a Comm. After a
// CommError the object is unusable, and every later call throws the same error.
//
// Any number of gathers, reduce_scatters, all_to_alls and all_to_all_vs may be outstanding. A transport with room for
// fewer completes the oldest within a later call. An output must not be used before wait() returns, and the collective
// can write to it at any earlier time. An input must stay unchanged until drain(), or until the *next* barrier,
// all_reduce or broadcast has completed. Because of this rule, a gather copies each byte once and needs no second
// synchronisation.
class Comm {
 public:
  virtual ~Comm() = default;

  virtual int rank() const = 0;
  virtual int world_size() const = 0;
  virtual std::string_view transport() const = 0;  // "shm", "gloo", "nccl", ...; printed at start
  // Returns a communicator of the same ranks for host memory. The default is this communicator. A communicator for a
  // device returns another communicator. Ranks use it to agree on something without waiting for a device.
  virtual Comm& host() { return *this; }

  // Fills `full` with the shard of rank 0, the shard of rank 1, and so on. `shard` may be this rank's slice of `full`.
  virtual std::unique_ptr<Work> all_gather(Span full, ConstSpan shard, std::string_view tag) = 0;
  // Fills `out` with this rank's slice of the sum over ranks, added in the transport's own order ("native" reduction).
  virtual std::unique_ptr<Work> reduce_scatter(Span out, ConstSpan full, std::string_view tag) = 0;
  // Fills slice r of `out` with slice rank() of rank r's `in`. All slices are equally large.
  virtual std::unique_ptr<Work> all_to_all(Span out, ConstSpan in, std::string_view tag) = 0;
  // Exchanges pieces of any sizes. Rank `from` sends `counts[from * world_size + to]` elements to rank `to`. Every rank
  // passes the same table. `in` has the pieces that this rank sends, and `out` gets the pieces that this rank receives.
  // In both, the pieces lie in rank order.
  virtual std::unique_ptr<Work> all_to_all_v(Span out, ConstSpan in, std::span<const int64_t> counts,
                                             std::string_view tag) = 0;
  // Replaces `data` on every rank by the sum or the maximum over all ranks. `data` must be fp32, fp64 or kOther8
  // (int64). Sums are in the order of reduce_in_rank_order(), except for large sums over a process group (C10dComm).
  virtual std::unique_ptr<Work> all_reduce(Span data, ReduceOp op, std::string_view tag) = 0;
  virtual std::unique_ptr<Work> broadcast(Span data, int root, std::string_view tag) = 0;
  virtual void barrier(std::string_view tag) = 0;

  // Starts an exchange of the pieces of `full` (world_size equal slices). `scratch` has full.numel elements if
  // exchange_needs_scratch(), and is ignored otherwise. `full` should come from allocate().
  virtual std::unique_ptr<Exchange> exchange(ConstSpan full, Span scratch, std::string_view tag) = 0;
  virtual bool exchange_needs_scratch() const = 0;

  // Returns zeroed memory that the transport can address directly, aligned to at least 64 bytes. Collective: every rank
  // must call it in the same order with the same size. Collectives also accept other memory, but some transports first
  // copy an input that lies in it.
  virtual std::unique_ptr<Allocation> allocate(int64_t bytes, std::string_view tag) = 0;

  // Returns whether a collective that failed, or was not waited for, might still write to its output. If so, the output
  // must not be freed until the process ends. For memory from allocate(), the communicator itself ensures this.
  virtual bool still_writes() const { return false; }

  // Returns a number that is equal on ranks that called the same collectives. Only a communicator for a device returns
  // one. The collectives of a device do not compare what ranks have called, so the ranks compare this number over
  // host(). Other communicators return nothing, because their collectives compare the calls.
  virtual std::optional<int64_t> history() const { return std::nullopt; }
  // Must be called when every rank knows that the histories differ. Throws CommError that names the first difference.
  // Does nothing in communicators without a history.
  virtual void report_difference(std::string_view) {}
  // On a device, returns when the current stream has done its work. Throws CommError if a rank that takes part in this
  // work is missing. On the CPU, returns immediately, because every collective has done its work when its wait()
  // returns.
  virtual void await_device(std::string_view) {}

  // Throws CommError if this rank knows that the communicator is broken. The default does nothing.
  virtual void check() {}
  // Makes pending and future operations of every rank fail with `reason`, if that is still possible. A rank that fails
  // outside of a collective must call abort(), so that no peer waits for this rank.
  virtual void abort(std::string_view reason) noexcept = 0;
};

}  // namespace zeroshard
