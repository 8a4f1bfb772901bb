#include "device/mover.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "base/check.h"
#include "device/cut.h"
#include "device/host_copy.h"

namespace zeroshard {

Mover::Mover(c10::Device device, const Slots& slots, Ledger& ledger)
    : device_(device), piece_numel_(slots.piece_numel), stream_(device) {
  for (int i = 0; i < slots.count; ++i) {
    slots_.push_back({slots.on_host ? FlatBuffer::on_host(slots.bytes, device, slots.pin, ledger, slots.category)
                                    : FlatBuffer(slots.bytes, device, ledger, slots.category),
                      StreamUses(device)});
    if (!slots.on_host) slots_.back().uses.share();  // the current stream fills it with zeros
  }
}

Mover::~Mover() {
  if (!process_.is_own()) return;
  try {
    wait();
  } catch (const std::exception&) {  // the device has failed, so it copies nothing any more
  }
}

void Mover::to_host(void* to, const void* from, int64_t bytes) const {
  const SideStream::Scope scope(stream_);
  begin_copy_to_host(to, from, bytes, device_);
}

void Mover::to_device(void* to, const void* from, int64_t bytes) const {
  const SideStream::Scope scope(stream_);
  begin_copy_from_host(to, from, bytes, device_);
}

void Mover::move(const at::Tensor& to, const at::Tensor& from) const {
  if (to.numel() == 0) return;
  to.is_cpu() ? to_host(to.data_ptr(), from.const_data_ptr(), int64_t(from.nbytes()))
              : to_device(to.data_ptr(), from.const_data_ptr(), int64_t(from.nbytes()));
}

void Mover::outlive(const at::Tensor& tensor) const {
  const SideStream::Scope scope(stream_);
  outlive_current_stream(tensor);
}

void Mover::wait() const {
  record().synchronize();
}

void Mover::lend_on_host(const at::Tensor& far, const at::Tensor& near, Ways ways, const UseOnHost& use) {
  ZS_ASSERT(near.defined() || slots_.size() > 1 || (slots_.size() == 1 && far.numel() <= piece_numel_),
            "the next piece comes while one is in use");
  Piece next = begin_piece(far, near, ways, 0);
  while (next.range.size() > 0) {
    const Piece piece = std::move(next);
    next = begin_piece(far, near, ways, piece.range.end);
    if (piece.arrived) piece.arrived->synchronize();
    use(piece.range, piece.near);
    if (!ways.writes) continue;
    move(cut(far, piece.range), piece.near);
    if (piece.slot) piece.slot->last = record();
  }
}

// Prepares the piece that begins at element `at`, and starts to copy it to the host if ways.reads. Returns an empty
// piece if `at` is the end of `far`. The previous piece is still in use meanwhile.
Mover::Piece Mover::begin_piece(const at::Tensor& far, const at::Tensor& near, Ways ways, int64_t at) {
  Piece piece{{at, std::min(at + piece_numel_, far.numel())}, near};
  if (piece.range.size() == 0) return piece;
  if (near.defined()) {
    piece.near = cut(near, piece.range);
  } else {
    piece.slot = &next_slot();
    if (piece.slot->last) piece.slot->last->synchronize();
    piece.near = piece.slot->memory.view(far.scalar_type(), 0, piece.range.size());
  }
  if (!ways.reads) return piece;
  move(piece.near, cut(far, piece.range));
  piece.arrived = record();
  if (piece.slot) piece.slot->last = record();
  return piece;
}

void Mover::lend_on_device(const at::Tensor& far, Ways ways, bool waits, const UseOnDevice& use) {
  Slot& slot = next_slot();
  const at::Tensor near = slot.memory.view(far.scalar_type(), 0, far.numel());
  const auto bytes = int64_t(far.nbytes());
  slot.uses.take();
  if (ways.reads) copy_from_host(near.data_ptr(), far.const_data_ptr(), bytes, device_);
  use(near);
  if (ways.writes && waits) copy_to_host(far.data_ptr(), near.const_data_ptr(), bytes, device_);
  if (ways.writes && !waits) {
    follow();
    const SideStream::Scope scope(stream_);
    slot.uses.share();
    move(far, near);
  }
  slot.uses.end();  // the next user of this slot waits for the work up to here, but not for later work
}

}  // namespace zeroshard
