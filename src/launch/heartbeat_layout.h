#pragma once
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string_view>

// The memory that a launcher shares with the ranks of its host: a header, then one slot per local rank. Everything is
// lock-free and initially zero. A slot is written by one process, its rank, and read by the launcher; the launcher
// writes the header, and a slot's index.
namespace zeroshard::heartbeat {

constexpr const char* kVariable = "ZEROSHARD_HEARTBEAT_FD";
constexpr uint64_t kMagic = 0x3254414542535aULL;  // "ZSBEAT2"
constexpr size_t kTextBytes = 200, kNewsBytes = 480;

struct alignas(64) Header {
  uint64_t magic;
  uint64_t inode;  // of the memfd: detects a descriptor with the number of another file
  uint32_t slots, slot_bytes;
  // How the job has failed on another host. Written once: the text, and then its length, which is released.
  uint32_t news_bytes;
  std::array<char, kNewsBytes> news;
};

enum class Activity : uint32_t { kNone, kBeating, kFinished };

// Times are of CLOCK_MONOTONIC, in nanoseconds.
struct alignas(64) Slot {
  std::atomic<int32_t> owner;  // process id of the rank; 0: nobody yet
  std::atomic<Activity> activity;
  std::atomic<uint32_t> dumps;  // stacks printed: see stack_dump.h
  std::atomic<int64_t> step;
  std::atomic<int64_t> progress_ns;
  std::atomic<int64_t> meeting_since_ns;  // 0: not waiting for ranks to arrive
  std::atomic<int32_t> meeting_size;      // the number of ranks it waits for, itself included
  uint32_t index;                         // of this slot

  // Note [Sequence lock]: `sequence` is odd while the fields below change. All of them are atomics that are stored with
  // release and loaded with acquire, so a reader that sees any new field also sees that `sequence` has moved.
  alignas(64) std::atomic<uint32_t> sequence;
  std::atomic<int32_t> waiting_thread;    // thread id; 0: not waiting
  std::atomic<int64_t> waiting_since_ns;  // 0: not waiting
  std::atomic<uint64_t> length;
  std::array<std::atomic<uint64_t>, kTextBytes / 8> text;
};

static_assert(std::atomic<int64_t>::is_always_lock_free && std::atomic<uint32_t>::is_always_lock_free);
static_assert(sizeof(Slot) == 320 && sizeof(Header) == 512);

int64_t now_ns();
constexpr size_t board_bytes(size_t slots) {
  return sizeof(Header) + slots * sizeof(Slot);
}
Slot* slot_at(void* board, size_t index);
Header& header_of(Slot& slot);

}  // namespace zeroshard::heartbeat
