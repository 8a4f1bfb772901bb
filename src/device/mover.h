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

// Moves bytes between the host and a device by a stream of its own, while the host and the device's current stream go
// on. It may have buffers through which pieces pass in turn. It knows nothing of what it moves. Not for the CPU.
class Mover {
 public:
  // Buffers of one size, on the host or on the device.
  struct Slots {
    int64_t bytes = 0;  // of each
    int count = 0;      // two at least for lend_on_host(), if some memory has more than one piece
    int64_t piece_numel = 0;
    bool on_host = true;
    bool pin = true;  // those of the host
    Category category = Category::kPinned;
  };
  struct Slot {
    FlatBuffer memory;
    StreamUses uses;                      // of a buffer of the device
    std::optional<c10::Event> last = {};  // copy from a buffer of the host, or to it
  };

  explicit Mover(c10::Device device) : device_(device), stream_(device) {}
  Mover(c10::Device device, const Slots& slots, Ledger& ledger);
  Mover(const Mover&) = delete;
  Mover& operator=(const Mover&) = delete;
  // Waits for what is under way: then the memory of both sides may go. A fork of the process does not wait.
  ~Mover();

  c10::Device device() const { return device_; }
  const SideStream& stream() const { return stream_; }
  int64_t piece_numel() const { return piece_numel_; }
  size_t num_slots() const { return slots_.size(); }
  // The slot whose turn it is. The caller calls uses.take(), or waits for `last`.
  Slot& next_slot() { return slots_[turn_++ % slots_.size()]; }

  // Later moves begin after the work that the current stream was given so far.
  void follow() const { stream_.follow(); }
  // Begin to copy. Memory of the host has to stay until record() is complete, and memory of the device to be usable.
  void to_host(void* to, const void* from, int64_t bytes) const;
  void to_device(void* to, const void* from, int64_t bytes) const;
  // Begins to copy `from` to `to`. One is on the host and the other on the device, and both are contiguous.
  void move(const at::Tensor& to, const at::Tensor& from) const;
  // The memory of `tensor`, of the device, is not lent to others before what was begun so far has ended.
  void outlive(const at::Tensor& tensor) const;
  // Is complete when all that was begun so far is.
  c10::Event record() const { return stream_.record(); }
  // The host waits for all that was begun.
  void wait() const;

  // Whether what is lent is copied from where it lies, and back.
  struct Ways {
    bool reads = false, writes = false;
  };
  // Lends `far`, 1-D memory of the device, to the host: calls `use` for consecutive pieces of it, which are on the host
  // and valid during the call only. They are in `near` if that is defined, else in slots. The next piece comes while
  // one is in use. Nobody waits here for what is copied back. When `use` throws, copies go on: call wait().
  using UseOnHost = std::function<void(Range piece, const at::Tensor& near)>;
  void lend_on_host(const at::Tensor& far, const at::Tensor& near, Ways ways, const UseOnHost& use);
  // Lends `far`, a piece in memory of the host, to the device's current stream: calls `use` with a slot. The host waits
  // for what is read. It waits for what is copied back only with `waits`.
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
