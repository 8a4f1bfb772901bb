#pragma once
#include <array>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "zeroshard/tier.h"

namespace zeroshard {

// The purpose of bytes. Tables are printed in this order.
enum class Category : uint8_t {
  kParameters,     // full parameters that are never freed (stages 0-2), or shards (stage 3), in the compute dtype
  kGradients,      // reduced gradients (full at stages 0-1, shards at 2-3), and fp32 accumulation
  kMasterWeights,  // fp32 master weights
  kMoments,        // the optimizer's moments, and the scales of 8-bit moments
  kGatherRing,     // buffers of unsharded parameters (stage 3), and of updated parameters that are offloaded
  kReduceRing,     // buffers in which gradients wait for their reduction, and exchange scratch
  kPinned,         // host memory through which parameters and gradients pass
  kSwap,           // memory through which states pass on their way to a file and back
  kCheckpointStaging,
  kTemporaries,  // on devices: gradients that wait for packing, and short-lived results of a step
};
inline constexpr size_t kNumCategories = 10;

std::string_view name_of(Category category);
std::string_view name_of(Tier tier);

// A number of bytes for each category and tier.
struct Bytes {
  std::array<std::array<int64_t, kNumTiers>, kNumCategories> cells{};

  int64_t& at(Category category, Tier tier) { return cells[size_t(category)][size_t(tier)]; }
  int64_t at(Category category, Tier tier) const { return cells[size_t(category)][size_t(tier)]; }
  int64_t total(Tier tier) const;
  int64_t total() const;
  bool operator==(const Bytes&) const = default;
};

// A limit for the bytes on all `tiers` together.
struct TierLimit {
  std::vector<Tier> tiers;
  int64_t bytes = 0;
  std::string source;  // where the limit comes from, for messages
};

// Counts every byte that zeroshard holds, as a table of Bytes. The planner computes the same table, and tests compare
// the two. Thread-safe.
class Ledger {
 public:
  // Sets the limits of reserve(). Bytes that are already held may exceed them.
  void set_limits(std::vector<TierLimit> limits);
  // Returns whether `bytes` more on `tier` would stay within the limits.
  bool has_room(Tier tier, int64_t bytes) const;
  // Counts memory. Must be called before the memory is allocated. If a limit would be exceeded, throws OutOfMemory and
  // counts nothing.
  void reserve(Category category, Tier tier, int64_t bytes);
  // Counts memory that is already allocated, even if it exceeds a limit.
  void add(Category category, Tier tier, int64_t bytes);
  void remove(Category category, Tier tier, int64_t bytes);
  Bytes current() const;
  Bytes peak() const;  // for each cell: the highest value so far

 private:
  const TierLimit* passed_limit(Tier tier, int64_t bytes) const;
  int64_t held(const TierLimit& limit) const;
  void count(Category category, Tier tier, int64_t bytes);

  mutable std::mutex mutex_;
  Bytes current_, peak_;
  std::vector<TierLimit> limits_;
};

// Reserves bytes in a ledger until release() or the destructor removes them. The ledger must outlive the reservation.
class Reservation {
 public:
  Reservation() = default;
  Reservation(Ledger& ledger, Category category, Tier tier, int64_t bytes)
      : ledger_(&ledger), category_(category), tier_(tier), bytes_(bytes) {
    ledger.reserve(category, tier, bytes);
  }
  Reservation(Reservation&& other) noexcept { *this = std::move(other); }
  Reservation& operator=(Reservation&& other) noexcept {
    if (this == &other) return *this;
    release();
    ledger_ = std::exchange(other.ledger_, nullptr);
    category_ = other.category_;
    tier_ = other.tier_;
    bytes_ = other.bytes_;
    return *this;
  }
  ~Reservation() { release(); }

  explicit operator bool() const { return ledger_ != nullptr; }
  Category category() const { return category_; }
  void release() noexcept {
    if (ledger_ != nullptr) std::exchange(ledger_, nullptr)->remove(category_, tier_, bytes_);
  }

 private:
  Ledger* ledger_ = nullptr;
  Category category_ = Category::kParameters;
  Tier tier_ = Tier::kDevice;
  int64_t bytes_ = 0;
};

// Counts `bytes` of device memory in a ledger as long as the object lives. The object does not own the memory.
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
