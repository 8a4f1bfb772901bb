#pragma once
#include <functional>
#include <map>
#include <vector>

#include "device/flat_buffer.h"
#include "device/streams.h"

namespace zeroshard {

// A fixed set of persistent buffers, each used by one user at a time, so that no allocator runs in a step. Buffers come
// in size classes: one class per distinct number of bytes.
class SlotRing {
 public:
  class Slot {
   public:
    // The current stream has been given the zeros of `buffer`.
    explicit Slot(FlatBuffer buffer) : bytes_(buffer.bytes()), buffer_(std::move(buffer)), uses_(buffer_.device()) {
      uses_.share();
      uses_.end();
    }
    char* data() const { return buffer_.data(); }
    const FlatBuffer& buffer() const { return buffer_; }
    // A slot is handed back when its users have been given all their work, and may be busy with it for long.
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

  // Slots by size: bytes -> count. `allocate` is called once per slot, smallest class first.
  SlotRing(const std::map<int64_t, int>& slots, Allocate allocate);
  // More slots: of a ring that is lent before there is memory for it, as while the user's model is freed.
  void add(const std::map<int64_t, int>& slots);

  // A free slot of exactly this size class, or null when all are in use.
  Slot* try_acquire(int64_t bytes);
  // A free slot, or a new one beyond the ring, which is freed at its release. For users who hold more units unsharded
  // at a time than the ring has slots (the ledger's peak shows it).
  Slot* acquire(int64_t bytes);
  void release(Slot* slot);
  // The memory of a slot, for tensors that may outlive the ring. The slot gets other memory; one beyond the ring gets
  // none, and is to be released. Throws where there is no memory, and then the slot is as it was.
  at::Tensor take_memory(Slot* slot);

 private:
  std::map<int64_t, std::vector<std::unique_ptr<Slot>>> classes_;
  Allocate allocate_;
};

}  // namespace zeroshard
