#pragma once
#include <atomic>
#include <cstdint>

namespace zeroshard {

// Sleeps until another thread or process calls futex_wake_all() for `word`, for at most `timeout_ms`. Does not sleep if
// `word` is not `expected`. The sleep can also end early without a reason.
void futex_wait(const std::atomic<uint32_t>& word, uint32_t expected, int64_t timeout_ms) noexcept;
void futex_wake_all(const std::atomic<uint32_t>& word) noexcept;

// Returns the number of online processors of the host, even if this process can use fewer because a launcher has bound
// each rank to its own processors.
int online_cores() noexcept;

// Executes one pause of a busy-wait loop.
inline void cpu_relax() noexcept {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace zeroshard
