#pragma once
#include <atomic>
#include <cstdint>

namespace zeroshard {

// Sleeps until woken, for at most `timeout_ms`, or not at all when `word` is not `expected`. May return early.
void futex_wait(const std::atomic<uint32_t>& word, uint32_t expected, int64_t timeout_ms) noexcept;
void futex_wake_all(const std::atomic<uint32_t>& word) noexcept;

// Processors of this host, not of this process: a launcher may have pinned each rank to its own.
int online_cores() noexcept;

// One turn of a busy-wait loop.
inline void cpu_relax() noexcept {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace zeroshard
