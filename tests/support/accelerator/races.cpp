#include "support/accelerator/races.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/format.h"

namespace zeroshard::accelerator {
namespace {

void join(Clock& clock, const Clock& other) {
  if (clock.size() < other.size()) clock.resize(other.size());
  for (size_t i = 0; i < other.size(); ++i) clock[i] = std::max(clock[i], other[i]);
}

}  // namespace

int Races::add_stream(std::string name) {
  const std::scoped_lock lock(mutex_);
  names_.push_back(std::move(name));
  clocks_.emplace_back();
  return static_cast<int>(names_.size()) - 1;
}

void Races::enqueue(int stream, uint64_t seq, const std::string& what, const std::vector<Access>& accesses) {
  const std::scoped_lock lock(mutex_);
  const auto index = static_cast<size_t>(stream);
  Clock& clock = clocks_[index];
  join(clock, host_);
  if (clock.size() <= index) clock.resize(index + 1);
  clock[index] = seq;
  const Done now{stream, seq, what};
  for (const Access& access : accesses) {
    if (access.begin >= access.end) continue;
    cut(access.begin);
    cut(access.end);
    fill_gaps(access.begin, access.end);
    for (auto at = segments_.find(access.begin); at != segments_.end() && at->first < access.end; ++at) {
      Segment& segment = at->second;
      check(now, access.writes, segment.write, /*wrote=*/true);
      if (access.writes) {
        for (const Done& read : segment.reads) check(now, /*writes=*/true, read, /*wrote=*/false);
        segment.write = now;
        segment.reads.clear();
      } else {
        std::erase_if(segment.reads, [&](const Done& read) { return read.stream == stream; });
        segment.reads.push_back(now);
      }
    }
  }
}

Clock Races::clock(int stream) const {
  const std::scoped_lock lock(mutex_);
  return clocks_[static_cast<size_t>(stream)];
}

void Races::stream_waits(int stream, const Clock& clock) {
  const std::scoped_lock lock(mutex_);
  join(clocks_[static_cast<size_t>(stream)], clock);
}

void Races::host_waits(const Clock& clock) {
  const std::scoped_lock lock(mutex_);
  join(host_, clock);
}

std::vector<std::string> Races::found() const {
  const std::scoped_lock lock(mutex_);
  return found_;
}

void Races::forget() {
  const std::scoped_lock lock(mutex_);
  found_.clear();
  segments_.clear();
}

// Afterwards no segment lies on both sides of `at`.
void Races::cut(uintptr_t at) {
  auto after = segments_.upper_bound(at);
  if (after == segments_.begin()) return;
  auto& [begin, segment] = *std::prev(after);
  if (begin == at || segment.end <= at) return;
  Segment rest = segment;
  segment.end = at;
  segments_.emplace_hint(after, at, std::move(rest));
}

// Afterwards segments cover the whole range, of which none reaches beyond it.
void Races::fill_gaps(uintptr_t begin, uintptr_t end) {
  while (begin < end) {
    const auto at = segments_.lower_bound(begin);
    if (at != segments_.end() && at->first == begin) {
      begin = at->second.end;
      continue;
    }
    const uintptr_t until = at == segments_.end() ? end : std::min(end, at->first);
    segments_.emplace_hint(at, begin, Segment{until, {}, {}});
    begin = until;
  }
}

void Races::check(const Done& now, bool writes, const Done& before, bool wrote) {
  if (before.stream < 0 || before.stream == now.stream) return;
  const Clock& clock = clocks_[static_cast<size_t>(now.stream)];
  const auto stream = static_cast<size_t>(before.stream);
  if (stream < clock.size() && clock[stream] >= before.seq) return;
  const std::string text =
      concat(writes ? "write" : "read", " by ", now.what, " on ", names_[static_cast<size_t>(now.stream)],
             ", not ordered with the ", wrote ? "write" : "read", " by ", before.what, " on ", names_[stream]);
  if (std::find(found_.begin(), found_.end(), text) == found_.end()) found_.push_back(text);
}

}  // namespace zeroshard::accelerator
