#pragma once
#include <cstddef>
#include <map>
#include <optional>
#include <vector>

#include "engine/executor.h"

namespace zeroshard {

// The units that users hold gathered: one entry per Engine::gather() of a unit, innermost last. If writes may
// be dropped and the unit stays whole afterwards, the entry keeps the earlier values on the host, to restore them after
// a failure. A unit that is resharded needs no copy, because its shards have the values.
class HeldValues {
 public:
  enum class Purpose : uint8_t { kRead, kReadAndDrop, kModify, kModifyForGood };

  // `executor` outlives it.
  explicit HeldValues(Executor& executor) : executor_(executor) {}

  // `unit` is whole.
  void begin(size_t unit, Purpose purpose);
  // Ends the innermost entry, and returns its purpose; nothing without one.
  std::optional<Purpose> end(size_t unit);
  // The same, and restores the unit's earlier values, if they are still kept.
  std::optional<Purpose> end_and_restore(size_t unit);
  // All ranks have taken over the unit's current values: enclosing entries no longer restore older ones.
  void accept(size_t unit);
  // Whether the user may be about to change some.
  bool may_change() const;
  // From now on nothing is restored.
  void forget();

 private:
  // A tensor that was in other memory than the unit's.
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
