#include "base/interrupt.h"

#include <atomic>

namespace zeroshard {
namespace {

std::atomic<InterruptCheck> installed{nullptr};
thread_local bool is_checking = false;

struct Checking {
  Checking() { is_checking = true; }
  ~Checking() { is_checking = false; }
};

}  // namespace

void set_interrupt_check(InterruptCheck check) noexcept {
  installed = check;
}

void check_interrupt() {
  const InterruptCheck check = installed;
  if (check == nullptr || is_checking) return;
  const Checking checking;
  check();
}

bool in_interrupt_check() noexcept {
  return is_checking;
}

}  // namespace zeroshard
