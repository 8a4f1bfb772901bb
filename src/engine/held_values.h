#pragma once
#include <cstddef>
#include <map>
#include <optional>
#include <vector>

#include "engine/executor.h"

namespace zeroshard {

// Of the units that users hold gathered, one entry per Engine::gather() of each, the innermost last. Where one may be
// modified, and stays whole afterwards, the entry has its values from before on the host: what fails half way is put
// back. A unit that is sharded again needs none, as its shards have them.
class HeldValues {
 public:
  enum class Purpose : uint8_t { kRead, kModify, kModifyForGood };

  // `executor` outlives it.
  explicit HeldValues(Executor& executor) : executor_(executor) {}

  // `unit` is whole.
  void begin(size_t unit, Purpose purpose);
  // Ends the innermost entry, and returns its purpose; nothing without one.
  std::optional<Purpose> end(size_t unit);
  // The same, and the unit has the values from before, if they are still kept.
  std::optional<Purpose> end_and_restore(size_t unit);
  // What a unit has now was taken on all ranks: no entry around takes that back.
  void accept(size_t unit);
  // Whether the user may be about to change some.
  bool may_change() const;
  // Nothing is put back any more.
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
