#pragma once
#include <array>
#include <cstdint>
#include <mutex>
#include <string_view>

#include "zeroshard/tier.h"

namespace zeroshard {

// The purpose of a byte. The order is the order of printed tables.
enum class Category : uint8_t {
  kParameters,     // full parameters that are never freed (stages 0-2), or shards (stage 3), in the compute dtype
  kGradients,      // reduced gradients (full at stages 0-1, shards at 2-3), and fp32 accumulation
  kMasterWeights,  // fp32 master weights
  kMoments,        // optimizer states
  kGatherRing,     // buffers behind unsharded parameters (stage 3)
  kReduceRing,     // buffers in which gradients wait for their reduction, and exchange scratch
  kPinned,         // host memory through which parameters go to a device and back
  kSwap,           // memory through which states go to a file and back
  kCheckpointStaging,
  kTemporaries,  // on devices: gradients that wait to be packed, and what operations of a step need for a while
};
inline constexpr size_t kNumCategories = 10;

std::string_view name_of(Category category);
std::string_view name_of(Tier tier);

// Bytes by category and tier.
struct Bytes {
  std::array<std::array<int64_t, kNumTiers>, kNumCategories> cells{};

  int64_t& at(Category category, Tier tier) { return cells[size_t(category)][size_t(tier)]; }
  int64_t at(Category category, Tier tier) const { return cells[size_t(category)][size_t(tier)]; }
  int64_t total(Tier tier) const;
  int64_t total() const;
  bool operator==(const Bytes&) const = default;
};

// Counts every byte that zeroshard holds. Planner and runtime fill the same table, and tests compare them. Thread-safe.
class Ledger {
 public:
  void add(Category category, Tier tier, int64_t bytes);
  void remove(Category category, Tier tier, int64_t bytes);
  Bytes current() const;
  Bytes peak() const;  // per cell: the highest value so far

 private:
  mutable std::mutex mutex_;
  Bytes current_, peak_;
};

// Memory of a device that is held for the lifetime of this, and belongs to somebody else.
class Temporary {
 public:
  Temporary(Ledger& ledger, int64_t bytes) : ledger_(ledger), bytes_(bytes) {
    ledger_.add(Category::kTemporaries, Tier::kDevice, bytes_);
  }
  ~Temporary() { ledger_.remove(Category::kTemporaries, Tier::kDevice, bytes_); }
  Temporary(const Temporary&) = delete;
  Temporary& operator=(const Temporary&) = delete;

 private:
  Ledger& ledger_;
  int64_t bytes_;
};

}  // namespace zeroshard
