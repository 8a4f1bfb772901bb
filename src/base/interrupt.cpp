#include "base/interrupt.h"

#include <atomic>

namespace zeroshard {
namespace {

std::atomic<InterruptCheck> installed{nullptr};
thread_local bool is_checking = false;

}  // namespace

void set_interrupt_check(InterruptCheck check) noexcept {
  installed = check;
}

void check_interrupt() {
  const InterruptCheck check = installed;
  if (check == nullptr || is_checking) return;
  const UninterruptedThread checking;
  check();
}

UninterruptedThread::UninterruptedThread() noexcept {
  is_checking = true;
}
UninterruptedThread::~UninterruptedThread() {
  is_checking = false;
}

bool in_interrupt_check() noexcept {
  return is_checking;
}

}  // namespace zeroshard
