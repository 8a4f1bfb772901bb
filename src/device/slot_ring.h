#pragma once
#include <functional>
#include <map>
#include <vector>

#include "device/flat_buffer.h"
#include "device/streams.h"

namespace zeroshard {

// A set of persistent buffers, so that a step needs no allocator. Each buffer has one user at a time. All buffers of
// one size, in bytes, form a size class.
class SlotRing {
 public:
  class Slot {
   public:
    // The work that fills `buffer` with zeros must already be queued on the current stream.
    explicit Slot(FlatBuffer buffer) : bytes_(buffer.bytes()), buffer_(std::move(buffer)), uses_(buffer_.device()) {
      uses_.share();
      uses_.end();
    }
    char* data() const { return buffer_.data(); }
    const FlatBuffer& buffer() const { return buffer_; }
    // Tracks the streams that use the slot. Users release a slot when they have queued all their work, so streams can
    // still use it long after the release.
    StreamUses& uses() { return uses_; }

   private:
    friend class SlotRing;
    int64_t bytes_;  // the slot's size class
    FlatBuffer buffer_;
    StreamUses uses_;
    bool lent_ = false;
    bool overflow_ = false;
  };
  using Allocate = std::function<FlatBuffer(int64_t bytes)>;

  // `slots` says for each size in bytes how many slots there are. `allocate` is called once for each slot, smallest
  // first, and once for each slot that add() or acquire() makes.
  SlotRing(const std::map<int64_t, int>& slots, Allocate allocate);
  // Adds slots. A ring can be created without slots and get them when there is memory for them, for example while the
  // user's model is being freed.
  void add(const std::map<int64_t, int>& slots);

  // Returns a free slot of exactly this size class, or null if all are in use.
  Slot* try_acquire(int64_t bytes);
  // Returns a free slot. If all slots of the size class are in use, returns a new slot, which release() frees. This
  // happens if users have more units unsharded at a time than the gather ring has slots, or if a backward fills more
  // buckets at a time than the reduce ring has. The ledger's peak shows these slots.
  Slot* acquire(int64_t bytes);
  void release(Slot* slot);
  // Returns the memory of a slot, for tensors that can outlive the ring. A slot that stays in the ring gets new memory
  // instead. If there is none, throws, and the slot keeps its memory. A slot that acquire() made because all others
  // were in use gets no new memory, and the caller must release it next.
  at::Tensor take_memory(Slot* slot);

 private:
  std::map<int64_t, std::vector<std::unique_ptr<Slot>>> classes_;
  Allocate allocate_;
};

}  // namespace zeroshard
