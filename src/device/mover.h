#pragma once
#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include <functional>
#include <optional>
#include <vector>

#include "base/process_mark.h"
#include "device/flat_buffer.h"
#include "device/streams.h"
#include "layout/shard_layout.h"

namespace zeroshard {

// Copies bytes between the host and a device on a stream of its own, while the host and the device's current stream
// continue. A mover can have buffers (slots), through which the pieces of larger memory pass in turn. It does not know
// what the bytes mean. It does not work for the CPU.
class Mover {
 public:
  // The buffers of a Mover. All have the same size. Either all are on the host, or all are on the device.
  struct Slots {
    int64_t bytes = 0;        // size of each buffer
    int count = 0;            // lend_on_host() of several pieces without `near` needs at least 2
    int64_t piece_numel = 0;  // the most elements of a piece of lend_on_host()
    bool on_host = true;
    bool pin = true;  // whether buffers on the host are pinned
    Category category = Category::kPinned;
  };
  struct Slot {
    FlatBuffer memory;
    StreamUses uses;  // for a buffer on the device
    // For a buffer on the host. The event completes when the last copy from or to the buffer has ended.
    std::optional<c10::Event> last = {};
  };

  explicit Mover(c10::Device device) : device_(device), stream_(device) {}
  Mover(c10::Device device, const Slots& slots, Ledger& ledger);
  Mover(const Mover&) = delete;
  Mover& operator=(const Mover&) = delete;
  // Waits for pending copies, so that the memory of both sides can be freed. In a forked child it does not wait.
  ~Mover();

  c10::Device device() const { return device_; }
  const SideStream& stream() const { return stream_; }
  int64_t piece_numel() const { return piece_numel_; }
  size_t num_slots() const { return slots_.size(); }
  // Returns the next slot in turn. Before using a slot on the device, the caller must call uses.take(). Before using a
  // slot on the host, the caller must wait for `last`.
  Slot& next_slot() { return slots_[turn_++ % slots_.size()]; }

  // Makes later copies wait for the present work of the current stream.
  void follow() const { stream_.follow(); }
  // to_host() and to_device() start a copy on the mover's stream. The host memory must stay valid until a later event
  // of record() is complete. The caller must let the copy wait for earlier work on the device memory (follow()), and
  // must keep this memory from being freed before the copy has ended (outlive()).
  void to_host(void* to, const void* from, int64_t bytes) const;
  void to_device(void* to, const void* from, int64_t bytes) const;
  // Starts to copy `from` to `to`. One of the tensors must be on the host, the other on the device. Both must be
  // contiguous.
  void move(const at::Tensor& to, const at::Tensor& from) const;
  // Prevents the device memory of `tensor` from being reused before the copies that were started so far have ended.
  void outlive(const at::Tensor& tensor) const;
  // Returns an event that completes when all copies that were started so far are complete.
  c10::Event record() const { return stream_.record(); }
  // Blocks the host until all copies that were started are complete.
  void wait() const;

  // Says whether lent memory is copied to the other side before `use` (reads), and copied back afterwards (writes).
  struct Ways {
    bool reads = false, writes = false;
  };
  // Lends `far`, 1-D memory of the device, to the host. Calls `use` for one piece after another, with host memory that
  // is valid only during the call of `use`. If `near` is defined, this memory is a part of `near`, which must be as
  // large as `far`. If not, it is a part of a slot. While one piece is in use, the next one is copied. The caller must
  // let the copies wait for earlier work on `far` (follow()). The function does not wait for copies back. If `use`
  // throws, copies continue, and the caller must call wait().
  using UseOnHost = std::function<void(Range piece, const at::Tensor& near)>;
  void lend_on_host(const at::Tensor& far, const at::Tensor& near, Ways ways, const UseOnHost& use);
  // Lends `far`, a piece of host memory that fits a slot, to the device's current stream. Calls `use` with memory of a
  // slot. The host waits for the copy to the device. If `waits` is true, the host also waits for the copy back. If not,
  // the mover's stream copies back.
  using UseOnDevice = std::function<void(const at::Tensor& near)>;
  void lend_on_device(const at::Tensor& far, Ways ways, bool waits, const UseOnDevice& use);

 private:
  struct Piece {
    Range range;
    at::Tensor near;
    Slot* slot = nullptr;
    std::optional<c10::Event> arrived = {};
  };
  Piece begin_piece(const at::Tensor& far, const at::Tensor& near, Ways ways, int64_t at);

  c10::Device device_;
  ProcessMark process_;
  int64_t piece_numel_ = 0;
  std::vector<Slot> slots_;
  size_t turn_ = 0;
  SideStream stream_;
};

}  // namespace zeroshard
