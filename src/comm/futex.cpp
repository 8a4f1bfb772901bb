#include "comm/futex.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <climits>

namespace zeroshard {

// FUTEX_PRIVATE operations would wake no other process, and several processes map the memory of the word.
void futex_wait(const std::atomic<uint32_t>& word, uint32_t expected, int64_t timeout_ms) noexcept {
  const timespec timeout{timeout_ms / 1000, (timeout_ms % 1000) * 1'000'000};
  ::syscall(SYS_futex, &word, FUTEX_WAIT, expected, &timeout, nullptr, 0);
}

void futex_wake_all(const std::atomic<uint32_t>& word) noexcept {
  ::syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

int online_cores() noexcept {
  return static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN));
}

}  // namespace zeroshard
