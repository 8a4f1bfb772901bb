#pragma once
#include <functional>
#include <map>
#include <vector>

#include "device/flat_buffer.h"
#include "device/streams.h"

namespace zeroshard {

// A fixed set of persistent buffers, so that a step needs no allocator. Each buffer has one user at a time. Buffers
// have size classes: one class per distinct number of bytes.
class SlotRing {
 public:
  class Slot {
   public:
    // The work that zeroes `buffer` must have been given to the current stream.
    explicit Slot(FlatBuffer buffer) : bytes_(buffer.bytes()), buffer_(std::move(buffer)), uses_(buffer_.device()) {
      uses_.share();
      uses_.end();
    }
    char* data() const { return buffer_.data(); }
    const FlatBuffer& buffer() const { return buffer_; }
    // Tracks the streams that use the slot. A slot is released when its users have queued all their work, so streams
    // may use it long after that.
    StreamUses& uses() { return uses_; }

   private:
    friend class SlotRing;
    int64_t bytes_;  // its size class
    FlatBuffer buffer_;
    StreamUses uses_;
    bool lent_ = false;
    bool overflow_ = false;
  };
  using Allocate = std::function<FlatBuffer(int64_t bytes)>;

  // `slots` maps bytes to the number of slots. `allocate` is called once per slot, smallest class first.
  SlotRing(const std::map<int64_t, int>& slots, Allocate allocate);
  // Adds slots. A ring may be passed on before there is memory for its slots, for example while the user's model is
  // being freed.
  void add(const std::map<int64_t, int>& slots);

  // Returns a free slot of exactly this size class, or null if all are in use.
  Slot* try_acquire(int64_t bytes);
  // Returns a free slot, or a new slot beyond the ring, which is freed at its release. Users who hold more units
  // unsharded at a time than the ring has slots get such slots, and the ledger's peak shows them.
  Slot* acquire(int64_t bytes);
  void release(Slot* slot);
  // Returns the memory of a slot, for tensors that may outlive the ring. The slot gets new memory. A slot beyond the
  // ring gets none, and the caller must release it. If there is no memory, throws and leaves the slot unchanged.
  at::Tensor take_memory(Slot* slot);

 private:
  std::map<int64_t, std::vector<std::unique_ptr<Slot>>> classes_;
  Allocate allocate_;
};

}  // namespace zeroshard
