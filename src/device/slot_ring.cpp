#include "device/slot_ring.h"

#include <algorithm>

#include "base/check.h"

namespace zeroshard {

SlotRing::SlotRing(const std::map<int64_t, int>& slots, Allocate allocate) : allocate_(std::move(allocate)) {
  add(slots);
}

void SlotRing::add(const std::map<int64_t, int>& slots) {
  for (const auto& [bytes, count] : slots) {
    for (int i = 0; i < count; ++i) classes_[bytes].push_back(std::make_unique<Slot>(allocate_(bytes)));
  }
}

SlotRing::Slot* SlotRing::try_acquire(int64_t bytes) {
  for (const auto& slot : classes_[bytes]) {
    if (slot->lent_) continue;
    slot->lent_ = true;
    return slot.get();
  }
  return nullptr;
}

SlotRing::Slot* SlotRing::acquire(int64_t bytes) {
  if (Slot* const slot = try_acquire(bytes)) return slot;
  auto& slots = classes_[bytes];
  slots.push_back(std::make_unique<Slot>(allocate_(bytes)));
  slots.back()->lent_ = slots.back()->overflow_ = true;
  return slots.back().get();
}

void SlotRing::release(Slot* slot) {
  ZS_ASSERT(slot->lent_, "a slot was released twice");
  slot->lent_ = false;
  if (!slot->overflow_) return;
  for (const c10::Stream stream : slot->uses_.streams()) slot->buffer_.freed_after(stream);
  auto& slots = classes_[slot->bytes_];
  std::erase_if(slots, [&](const auto& owned) { return owned.get() == slot; });
}

at::Tensor SlotRing::take_memory(Slot* slot) {
  for (const c10::Stream stream : slot->uses_.streams()) slot->buffer_.freed_after(stream);
  if (slot->overflow_) return std::move(slot->buffer_).take_memory();
  at::Tensor memory = slot->buffer_.replace_memory();
  slot->uses_.share();
  slot->uses_.end();
  return memory;
}

}  // namespace zeroshard
