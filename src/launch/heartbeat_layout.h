#pragma once
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string_view>

// Defines the memory that a launcher shares with the ranks of its host. It consists of a header and one slot for each
// local rank. All atomic members are lock-free and initially zero. Each rank writes its own slot, and the launcher
// reads all slots. The launcher writes the header and the index of each slot.
namespace zeroshard::heartbeat {

constexpr const char* kVariable = "ZEROSHARD_HEARTBEAT_FD";
constexpr uint64_t kMagic = 0x3254414542535aULL;  // "ZSBEAT2"
constexpr size_t kTextBytes = 200, kNewsBytes = 480;

struct alignas(64) Header {
  uint64_t magic;
  // The inode of the memfd. A rank compares it with the inode of the file that the descriptor leads to, because the
  // number of the descriptor might now belong to another file.
  uint64_t inode;
  uint32_t slots, slot_bytes;
  // The text says how the job has failed on another host. The launcher writes it once. It first writes the text, and
  // then the length, with release order.
  uint32_t news_bytes;
  std::array<char, kNewsBytes> news;
};

enum class Activity : uint32_t { kNone, kBeating, kFinished };

// The last report of one rank. Times are in nanoseconds, on CLOCK_MONOTONIC.
struct alignas(64) Slot {
  std::atomic<int32_t> owner;  // the process that reports for the rank; 0: no process has connected
  std::atomic<Activity> activity;
  std::atomic<uint32_t> dumps;  // how many stacks the rank has printed; see stack_dump.h
  std::atomic<int64_t> step;
  std::atomic<int64_t> progress_ns;
  std::atomic<int64_t> meeting_since_ns;  // 0: the rank does not wait for ranks to arrive
  std::atomic<int32_t> meeting_size;      // for how many ranks the rank waits, itself included
  uint32_t index;                         // index of this slot

  // Note [Sequence lock]: `sequence` is odd while the fields below change. All these fields are atomics, which are
  // stored with release and loaded with acquire. So a reader that sees a new value of any field also sees that
  // `sequence` has changed.
  alignas(64) std::atomic<uint32_t> sequence;
  std::atomic<int32_t> waiting_thread;    // id of the thread that waits; 0: none
  std::atomic<int64_t> waiting_since_ns;  // 0: no thread waits
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
