#pragma once
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "comm/op.h"

namespace zeroshard {

// The shared memory through which ranks of one host synchronise. It holds each rank's last collectives and the rank's
// progress in them. A rank reads all parts, but writes only its own part, with two exceptions. A rank that waits
// changes RankControl::waiters of the rank that it waits for. A rank that aborts writes the abort reason, and changes
// RankControl::events of all ranks.
//
// Collectives are numbered in their order (Op::seq). A rank first posts collective `seq`, so that peers can read its Op
// and its input. Later, when the rank needs no peer's input any more, it finishes the collective. The Op, and the
// number of the finished collective, are stored in slot seq % kRing. The slot is reused only after all ranks have
// finished `seq`.
constexpr uint64_t kRing = 128;
constexpr uint64_t kMaxSegments = 4096;  // allocations of one rank that can be alive at a time

// An Op stored in atomic words, because a peer can read it while its owner overwrites it. A reader might get a mixture
// of two Ops, so it must compare the Op with the one that it expects.
class OpRecord {
 public:
  void store(const Op& op);
  Op load() const;

 private:
  static constexpr size_t kWords = (sizeof(Op) + 7) / 8;
  std::array<std::atomic<uint64_t>, kWords> words_{};
};

// The progress that rank `peer` must make in collective `seq` before a wait ends.
struct Awaited {
  enum class Progress : uint8_t { kPosted, kFinished };
  int peer = 0;
  Progress progress = Progress::kPosted;
  uint64_t seq = 0;
  bool operator==(const Awaited&) const = default;
};

// An optional Awaited, stored in one atomic word so that a peer never reads half of it.
class AwaitedRecord {
 public:
  void store(const std::optional<Awaited>& awaited);
  std::optional<Awaited> load() const;

 private:
  std::atomic<uint64_t> word_{0};
};

// The part of the control block that belongs to one rank. Other ranks write only `waiters`, and `events` when they
// abort.
struct RankControl {
  alignas(64) std::atomic<uint64_t> posted{0};   // number of the last collective that this rank posted
  std::atomic<uint32_t> events{0};               // futex: incremented by every change for which another rank can wait
  std::atomic<uint32_t> left{0};                 // 1: the communicator was destroyed normally
  alignas(64) std::atomic<uint32_t> waiters{0};  // number of ranks that sleep until this rank makes progress
  AwaitedRecord awaited;  // set while this rank sleeps until a peer makes progress; setting it wakes nobody
  alignas(64) std::array<std::atomic<uint64_t>, kRing> finished{};  // by slot: number of the last finished collective
  std::array<std::atomic<uint64_t>, kMaxSegments> live_segments{};  // ids of this rank's segments, by slot; 0: free
  std::array<OpRecord, kRing> ops{};

  std::atomic<uint64_t>& finished_at(uint64_t seq) { return finished[seq % kRing]; }
  bool has_finished(uint64_t seq) const { return finished[seq % kRing].load(std::memory_order_acquire) >= seq; }
  bool has_posted(uint64_t seq) const { return posted.load(std::memory_order_acquire) >= seq; }
  // Returns whether this rank has made the progress that another rank awaits. `awaited.peer` is this rank.
  bool has_reached(const Awaited& awaited) const {
    return awaited.progress == Awaited::Progress::kPosted ? has_posted(awaited.seq) : has_finished(awaited.seq);
  }
  // Wakes every rank that waits for this one.
  void notify() noexcept;
  // Returns text_of() of the last collective that this rank posted, or "no collective".
  std::string progress() const;
  // Returns a text like "collective #17 all_gather(...)" for one of the last kRing collectives that this rank posted.
  // For other collectives, returns only "collective #17".
  std::string text_of(uint64_t seq) const;
};

class ControlBlock {
 public:
  static size_t bytes(int world_size) { return sizeof(Header) + sizeof(RankControl) * static_cast<size_t>(world_size); }
  // Initialises zeroed memory. Exactly one rank must call create(), before the other ranks attach.
  static void create(void* memory, int world_size);
  ControlBlock(void* memory, int world_size) : header_(static_cast<Header*>(memory)), world_size_(world_size) {}

  int world_size() const { return world_size_; }
  RankControl& rank(int rank) { return reinterpret_cast<RankControl*>(header_ + 1)[rank]; }

  // Sets the abort reason and wakes every rank, unless a reason is already set. If another rank is setting its reason
  // at this moment, waits until the reason is set, but at most a second. Afterwards aborted() returns the same text on
  // every rank. If a rank is killed while it sets the reason, aborted() never returns a reason.
  void abort(int rank, std::string_view reason) noexcept;
  // Returns the abort reason and the rank that gave it, or nothing if there is none yet.
  std::optional<std::string> aborted() const;
  bool finished_by_all(uint64_t seq);
  // Must be called after `rank` has posted or finished a collective. Wakes the ranks that wait for `rank`, but only if
  // `rank` has made the progress that one of them awaits, because a rank that is woken for nothing would take the core
  // and its caches from a rank that works.
  void tell_waiters(int rank) noexcept;

 private:
  enum State : uint32_t { kRunning, kWriting, kAborted };
  struct Header {
    alignas(64) std::atomic<uint32_t> state{kRunning};
    int32_t aborted_by = -1;
    char reason[1016] = {};
  };
  static_assert(std::atomic<uint64_t>::is_always_lock_free && std::atomic<uint32_t>::is_always_lock_free);

  Header* header_;
  int world_size_;
};

}  // namespace zeroshard
