#include "memory/ledger.h"

#include <algorithm>

#include "base/check.h"

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
  return total(Tier::kDevice) + total(Tier::kHost) + total(Tier::kFile);
}

void Ledger::add(Category category, Tier tier, int64_t bytes) {
  const std::lock_guard lock(mutex_);
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
