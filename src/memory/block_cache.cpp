#include "memory/block_cache.h"

#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <new>

#include "base/align.h"

namespace zeroshard {
namespace {

void* map(size_t bytes) {
  void* const start = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return start == MAP_FAILED ? nullptr : start;
}

int64_t seconds(BlockCache::Clock clock) {
  if (clock != nullptr) return clock();
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
  return now.tv_sec;
}

// Frees a mapping. The system joins neighbouring mappings, and refuses to split one again if the process already has
// too many mappings. In that case the pages are freed, but their addresses stay reserved.
void unmap(void* start, size_t bytes) {
  if (::munmap(start, bytes) != 0) ::madvise(start, bytes, MADV_DONTNEED);
}

}  // namespace

BlockCache::~BlockCache() {
  trim();
}

BlockCache::Block BlockCache::take(size_t bytes) noexcept {
  static const size_t page = size_t(::sysconf(_SC_PAGESIZE));
  const size_t needed = size_t(align_up(int64_t(bytes), int64_t(page)));
  const std::lock_guard lock(mutex_);
  end_overdue_step();
  Block block = take_kept(needed);
  if (block.start == nullptr) {
    const size_t limit = std::max({peak_, last_peak_, used_bytes_ + needed});
    shrink_to(limit - used_bytes_ - needed);
    block = {map(needed), needed};
    if (block.start == nullptr) {
      shrink_to(0);
      block.start = map(needed);
    }
    if (block.start == nullptr) return {};
  }
  used_bytes_ += block.bytes;
  peak_ = std::max(peak_, used_bytes_);
  return block;
}

BlockCache::Block BlockCache::take_kept(size_t needed) noexcept {
  auto found = kept_.lower_bound(needed);
  if (found == kept_.end() || found->first - needed > needed / 8) return {};
  // Takes the block of this size that was freed last, because it is most likely still in a processor's cache.
  found = std::prev(kept_.upper_bound(found->first));
  const Block block{found->second.start, found->first};
  kept_bytes_ -= block.bytes;
  kept_.erase(found);
  return block;
}

void BlockCache::give_back(Block block) noexcept {
  const std::lock_guard lock(mutex_);
  end_overdue_step();
  used_bytes_ -= block.bytes;
  try {
    kept_.insert({block.bytes, {block.start, ++clock_}});
    kept_bytes_ += block.bytes;
  } catch (const std::bad_alloc&) {
    unmap(block.start, block.bytes);
  }
}

void BlockCache::end_step() noexcept {
  const std::lock_guard lock(mutex_);
  step_ended_ = seconds(now_);
  end_step_locked();
}

void BlockCache::end_overdue_step() noexcept {
  const int64_t now = seconds(now_);
  if (step_ended_ == 0) step_ended_ = now;
  if (now - step_ended_ < kStepSeconds) return;
  step_ended_ = now;
  end_step_locked();
}

void BlockCache::end_step_locked() noexcept {
  last_peak_ = peak_;
  peak_ = used_bytes_;
  shrink_to(last_peak_ - used_bytes_);
}

void BlockCache::trim() noexcept {
  const std::lock_guard lock(mutex_);
  peak_ = last_peak_ = used_bytes_;
  shrink_to(0);
}

size_t BlockCache::kept_bytes() const {
  const std::lock_guard lock(mutex_);
  return kept_bytes_;
}

void BlockCache::shrink_to(size_t bytes) noexcept {
  while (kept_bytes_ > bytes) release_oldest();
}

void BlockCache::release_oldest() noexcept {
  const auto oldest = std::min_element(kept_.begin(), kept_.end(), [](const auto& left, const auto& right) {
    return left.second.freed_at < right.second.freed_at;
  });
  unmap(oldest->second.start, oldest->first);
  kept_bytes_ -= oldest->first;
  kept_.erase(oldest);
}

}  // namespace zeroshard
