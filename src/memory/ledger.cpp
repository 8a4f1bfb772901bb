#include "memory/ledger.h"

#include <algorithm>

#include "base/check.h"
#include "base/out_of_memory.h"

namespace zeroshard {

std::string_view name_of(Category category) {
  static constexpr std::array<std::string_view, kNumCategories> kNames = {
      "parameters", "gradients", "master weights",     "moments",    "gather ring", "reduce ring",
      "pinned",     "swap",      "checkpoint staging", "temporaries"};
  return kNames[size_t(category)];
}

std::string_view name_of(Tier tier) {
  static constexpr std::array<std::string_view, kNumTiers> kNames = {"device", "host", "file"};
  return kNames[size_t(tier)];
}

int64_t Bytes::total(Tier tier) const {
  int64_t sum = 0;
  for (const auto& row : cells) sum += row[size_t(tier)];
  return sum;
}

int64_t Bytes::total() const {
  int64_t sum = 0;
  for (const Tier tier : kTiers) sum += total(tier);
  return sum;
}

void Ledger::set_limits(std::vector<TierLimit> limits) {
  const std::lock_guard lock(mutex_);
  limits_ = std::move(limits);
}

int64_t Ledger::held(const TierLimit& limit) const {
  int64_t sum = 0;
  for (const Tier tier : limit.tiers) sum += current_.total(tier);
  return sum;
}

const TierLimit* Ledger::passed_limit(Tier tier, int64_t bytes) const {
  for (const TierLimit& limit : limits_) {
    const bool counts = std::find(limit.tiers.begin(), limit.tiers.end(), tier) != limit.tiers.end();
    if (counts && bytes > limit.bytes - held(limit)) return &limit;
  }
  return nullptr;
}

bool Ledger::has_room(Tier tier, int64_t bytes) const {
  const std::lock_guard lock(mutex_);
  return passed_limit(tier, bytes) == nullptr;
}

void Ledger::reserve(Category category, Tier tier, int64_t bytes) {
  const std::lock_guard lock(mutex_);
  if (const TierLimit* limit = bytes > 0 ? passed_limit(tier, bytes) : nullptr)
    throw OutOfMemory(concat("there is no room for ", bytes, " bytes of ", name_of(category), ": ", held(*limit),
                             " are held, and the limit is ", limit->bytes, " (", limit->source, ")"));
  count(category, tier, bytes);
}

void Ledger::add(Category category, Tier tier, int64_t bytes) {
  const std::lock_guard lock(mutex_);
  count(category, tier, bytes);
}

void Ledger::count(Category category, Tier tier, int64_t bytes) {
  int64_t& cell = current_.at(category, tier);
  cell += bytes;
  int64_t& high = peak_.at(category, tier);
  high = std::max(high, cell);
}

void Ledger::remove(Category category, Tier tier, int64_t bytes) {
  const std::lock_guard lock(mutex_);
  int64_t& cell = current_.at(category, tier);
  ZS_ASSERT(cell >= bytes, "the ledger holds ", cell, " bytes of ", name_of(category), ", removing ", bytes);
  cell -= bytes;
}

Bytes Ledger::current() const {
  const std::lock_guard lock(mutex_);
  return current_;
}

Bytes Ledger::peak() const {
  const std::lock_guard lock(mutex_);
  return peak_;
}

}  // namespace zeroshard
