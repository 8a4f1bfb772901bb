#include "base/write_hold.h"

#include <chrono>

namespace zeroshard {
namespace {

constexpr std::chrono::milliseconds kLook(100);  // time between calls of WhileWaiting

}  // namespace

WriteHold::Reading WriteHold::read() {
  const std::scoped_lock lock(mutex_);
  ++readers_;
  return Reading(this);
}

void WriteHold::await_readers() {
  std::unique_lock lock(mutex_);
  while (!changed_.wait_for(lock, kLook, [&] { return readers_ == 0; })) {
    if (!while_waiting_) continue;
    lock.unlock();
    while_waiting_();
    lock.lock();
  }
}

void WriteHold::end() noexcept {
  // Also held during notify_all(), because a writer that finds no reader left might destroy this object.
  const std::scoped_lock lock(mutex_);
  --readers_;
  changed_.notify_all();
}

}  // namespace zeroshard
