#include "comm/control_block.h"

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <new>

#include "comm/futex.h"

namespace zeroshard {
namespace {

constexpr std::chrono::milliseconds kTelling(1000);  // time for another rank to write its abort reason
constexpr int kPeerBits = 20;                        // bits of the peer's number in an AwaitedRecord

}  // namespace

void OpRecord::store(const Op& op) {
  std::array<uint64_t, kWords> words{};
  std::memcpy(words.data(), &op, sizeof op);
  for (size_t i = 0; i < kWords; ++i) words_[i].store(words[i], std::memory_order_relaxed);
}

Op OpRecord::load() const {
  std::array<uint64_t, kWords> words;
  for (size_t i = 0; i < kWords; ++i) words[i] = words_[i].load(std::memory_order_relaxed);
  Op op;
  std::memcpy(static_cast<void*>(&op), words.data(), sizeof op);
  return op;
}

void AwaitedRecord::store(const std::optional<Awaited>& awaited) {
  uint64_t word = 0;
  if (awaited) {
    const auto progress = static_cast<uint64_t>(awaited->progress);
    word = awaited->seq << (kPeerBits + 2) | static_cast<uint64_t>(awaited->peer) << 2 | progress << 1 | 1;
  }
  word_.store(word);
}

std::optional<Awaited> AwaitedRecord::load() const {
  const uint64_t word = word_.load();
  if ((word & 1) == 0) return std::nullopt;
  const auto peer = static_cast<int>(word >> 2 & ((uint64_t{1} << kPeerBits) - 1));
  return Awaited{peer, static_cast<Awaited::Progress>(word >> 1 & 1), word >> (kPeerBits + 2)};
}

void RankControl::notify() noexcept {
  // The waiter first registers in `waiters` and then reads `events`. This rank first changes `events` and then reads
  // `waiters`. All four accesses are sequentially consistent, so this rank sees the registration, or the waiter sees
  // the new `events`, or both.
  events.fetch_add(1);
  if (waiters.load() != 0) futex_wake_all(events);
}

std::string RankControl::progress() const {
  const uint64_t seq = posted.load(std::memory_order_acquire);
  return seq == 0 ? "no collective" : text_of(seq);
}

std::string RankControl::text_of(uint64_t seq) const {
  Op op = ops[seq % kRing].load();
  op.tag[Op::kTagSize - 1] = 0;
  // If the record was overwritten before it was read, or if another process has damaged it, only the number is known.
  if (op.seq != seq || static_cast<int>(op.kind) >= kOpKinds) return concat("collective #", seq);
  return concat("collective #", seq, " ", op.text());
}

void ControlBlock::create(void* memory, int world_size) {
  Header* header = new (memory) Header;
  for (int i = 0; i < world_size; ++i) new (reinterpret_cast<RankControl*>(header + 1) + i) RankControl;
}

void ControlBlock::abort(int rank, std::string_view reason) noexcept {
  uint32_t expected = kRunning;
  if (!header_->state.compare_exchange_strong(expected, kWriting)) {
    // Another rank is writing its reason, or was killed while it wrote the reason. Waits only for a short time, because
    // a killed rank never finishes.
    const auto end = std::chrono::steady_clock::now() + kTelling;
    while (header_->state.load(std::memory_order_acquire) != kAborted && std::chrono::steady_clock::now() < end)
      ::sched_yield();
    return;
  }
  const size_t size = std::min(reason.size(), sizeof header_->reason - 1);
  std::memcpy(header_->reason, reason.data(), size);
  header_->reason[size] = 0;
  header_->aborted_by = rank;
  header_->state.store(kAborted, std::memory_order_release);
  for (int peer = 0; peer < world_size_; ++peer) this->rank(peer).notify();
}

std::optional<std::string> ControlBlock::aborted() const {
  if (header_->state.load(std::memory_order_acquire) != kAborted) return std::nullopt;
  return concat(header_->reason, " [reported by rank ", header_->aborted_by, "]");
}

void ControlBlock::tell_waiters(int rank) noexcept {
  RankControl& own = this->rank(rank);
  // The waiter first publishes its Awaited, then reads `events`, then checks the awaited state. This rank changes
  // `events` before it reads the Awaited. All these accesses are sequentially consistent. So if this rank does not see
  // the waiter's Awaited, the waiter sees what this rank has done.
  own.events.fetch_add(1);
  if (own.waiters.load() == 0) return;
  for (int peer = 0; peer < world_size_; ++peer) {
    const std::optional<Awaited> awaited = this->rank(peer).awaited.load();
    if (awaited && awaited->peer == rank && own.has_reached(*awaited)) return futex_wake_all(own.events);
  }
}

bool ControlBlock::finished_by_all(uint64_t seq) {
  for (int peer = 0; peer < world_size_; ++peer)
    if (!rank(peer).has_finished(seq)) return false;
  return true;
}

}  // namespace zeroshard
