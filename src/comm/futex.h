#pragma once
#include <atomic>
#include <cstdint>

namespace zeroshard {

// Sleeps until woken, for at most `timeout_ms`; returns at once if `word` is not `expected`. May return early.
void futex_wait(const std::atomic<uint32_t>& word, uint32_t expected, int64_t timeout_ms) noexcept;
void futex_wake_all(const std::atomic<uint32_t>& word) noexcept;

// The host's processors, not this process's: a launcher may have pinned each rank to its own.
int online_cores() noexcept;

// One iteration of a busy-wait loop.
inline void cpu_relax() noexcept {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace zeroshard
