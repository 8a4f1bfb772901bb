#pragma once
#include <cstddef>
#include <iterator>
#include <map>
#include <optional>
#include <vector>

#include "engine/executor.h"

namespace zeroshard {

// Records the units that users hold gathered. There is one entry per Engine::gather() of a unit, innermost last. An
// entry can keep a copy of the values that the unit had at the gather, so that a release with Engine::kDropWrites can
// restore them. It keeps no copy if its purpose does not allow dropping the user's writes. It also keeps none if the
// release reshards the unit, because the shards then still have the values.
class HeldValues {
 public:
  // These are the combinations of `to_modify` and `can_drop` of Engine::gather(). kReadAndDrop and kModify allow
  // dropping writes.
  enum class Purpose : uint8_t { kRead, kReadAndDrop, kModify, kModifyForGood };

  // `executor` must outlive it.
  explicit HeldValues(Executor& executor) : executor_(executor) {}

  // Returns the number of entries of the unit.
  int64_t times(size_t unit) const { return entries_.contains(unit) ? std::ssize(entries_.at(unit)) : 0; }
  // Adds an entry. `unit` must be unsharded.
  void begin(size_t unit, Purpose purpose);
  // Ends the innermost entry of the unit and returns its purpose; nothing if there is no entry.
  std::optional<Purpose> end(size_t unit);
  // Like end(), but also restores the values that the unit had at the gather, if the entry still keeps them and the
  // unit is unsharded.
  std::optional<Purpose> end_and_restore(size_t unit);
  // Replaces the copies that the unit's entries keep by copies of the current values. Call it when all ranks have
  // accepted the current values.
  void accept(size_t unit);
  // Returns whether some unit is held to be modified.
  bool may_change() const;
  // Drops the copies of all entries, so that these entries restore nothing.
  void forget();

 private:
  // A tensor of a parameter that was moved before the gather (Unit::is_moved()). `memory` is the memory that a user has
  // given it, and `values` is a copy of its values on the same device.
  struct Moved {
    at::Tensor tensor, memory, values;
  };
  struct Values {
    std::vector<at::Tensor> groups;  // on the host
    std::vector<Moved> moved;
  };
  struct Entry {
    Purpose purpose;
    std::optional<Values> before;
  };

  Values values_of(const Unit& unit) const;

  Executor& executor_;
  std::map<size_t, std::vector<Entry>> entries_;  // by unit
};

}  // namespace zeroshard
