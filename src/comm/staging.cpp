#include "comm/staging.h"

#include <sys/mman.h>

#include <algorithm>

#include "comm/copy.h"

namespace zeroshard {
namespace {

constexpr uint64_t kPieceAlignment = 64;
constexpr uint64_t kReserve = uint64_t{64} << 20;  // bytes that trim() keeps in memory

}  // namespace

std::optional<uint64_t> StagingRing::put(const void* data, int64_t bytes, uint64_t seq,
                                         const std::function<bool(uint64_t)>& is_finished) {
  while (!copies_.empty() && is_finished(copies_.front().seq)) copies_.pop_front();
  if (copies_.empty()) trim();
  const uint64_t size = (static_cast<uint64_t>(bytes) + kPieceAlignment - 1) / kPieceAlignment * kPieceAlignment;
  const std::optional<uint64_t> begin = place(size);
  if (!begin) return std::nullopt;
  copy_bytes(memory_.data() + *begin, data, bytes);
  copies_.push_back({seq, *begin, *begin + size});
  high_water_ = std::max(high_water_, *begin + size);
  return begin;
}

std::optional<uint64_t> StagingRing::place(uint64_t bytes) const {
  const uint64_t capacity = memory_.bytes();
  if (copies_.empty()) return bytes <= capacity ? std::optional<uint64_t>(0) : std::nullopt;
  const uint64_t head = copies_.back().end, tail = copies_.front().begin;
  if (head > tail) {
    if (bytes <= capacity - head) return head;
    return bytes <= tail ? std::optional<uint64_t>(0) : std::nullopt;
  }
  return bytes <= tail - head ? std::optional<uint64_t>(head) : std::nullopt;
}

void StagingRing::trim() noexcept {
  if (high_water_ <= kReserve) return;
  const uint64_t end = std::min<uint64_t>((high_water_ + 4095) / 4096 * 4096, memory_.bytes());
  ::madvise(memory_.data() + kReserve, end - kReserve, MADV_REMOVE);
  high_water_ = kReserve;
}

}  // namespace zeroshard
