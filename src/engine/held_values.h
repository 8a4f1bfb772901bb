#pragma once
#include <cstddef>
#include <iterator>
#include <map>
#include <optional>
#include <vector>

#include "engine/executor.h"

namespace zeroshard {

// Records the units that users hold gathered: one entry per Engine::gather() of a unit, innermost last. If the user's
// writes may be dropped and the unit stays whole afterwards, the entry keeps the earlier values on the host to restore
// them after a failure. A unit that is resharded needs no copy, because its shards have the values.
class HeldValues {
 public:
  enum class Purpose : uint8_t { kRead, kReadAndDrop, kModify, kModifyForGood };

  // `executor` must outlive it.
  explicit HeldValues(Executor& executor) : executor_(executor) {}

  // Returns the number of entries of the unit.
  int64_t times(size_t unit) const { return entries_.contains(unit) ? std::ssize(entries_.at(unit)) : 0; }
  // Adds an entry. `unit` must be unsharded.
  void begin(size_t unit, Purpose purpose);
  // Ends the innermost entry of the unit and returns its purpose; nothing if there is no entry.
  std::optional<Purpose> end(size_t unit);
  // Like end(), but also restores the unit's earlier values if they are still kept.
  std::optional<Purpose> end_and_restore(size_t unit);
  // Makes enclosing entries restore the unit's current values instead of earlier ones, because all ranks have accepted
  // the current values.
  void accept(size_t unit);
  // Returns whether the user may be changing values.
  bool may_change() const;
  // Drops the earlier values of all entries, so that these entries restore nothing.
  void forget();

 private:
  // A tensor to which a user had given other memory than the unit's, with this memory and a copy of its values.
  struct Moved {
    at::Tensor tensor, memory, values;
  };
  struct Values {
    std::vector<at::Tensor> groups;
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
