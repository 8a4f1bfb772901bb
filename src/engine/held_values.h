#pragma once
#include <cstddef>
#include <iterator>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "engine/executor.h"

namespace zeroshard {

// Records the units that users hold gathered. There is one entry per Engine::gather() of a unit, innermost last. What
// an entry keeps of the values that the unit had at the gather depends on its purpose. An entry for reading keeps
// checksums, by which its end finds writes, even those that version counters do not show (tensor.data.mul_). An entry
// that allows dropping the user's writes keeps a copy, so that a release with Engine::kDropWrites can restore the
// values. It needs no copy if the release reshards the unit, because the shards then still have the values.
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
  // These three functions end the innermost entry of the unit, if there is one. end_and_restore() also restores the
  // values that the unit had at the gather, if the entry still has them and the unit is unsharded. end_and_compare()
  // also returns the names of the parameters whose values have changed since the innermost gather for reading, and
  // calls Unit::point_back() for them. It returns none if no entry has checksums, or if the unit is no longer
  // unsharded.
  void end(size_t unit);
  void end_and_restore(size_t unit);
  std::vector<std::string> end_and_compare(size_t unit);
  // Replaces the copies that the unit's entries keep by copies of the current values, and drops their checksums. Call
  // it when all ranks have accepted the current values.
  void accept(size_t unit);
  // Returns whether some unit is held to be modified.
  bool may_change() const;
  // Drops all checksums, so that no entry compares anything. Call it when the engine or all ranks have changed values.
  void forget_checksums();
  // Drops all checksums and copies, so that no entry compares or restores anything.
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
    std::optional<Values> before = std::nullopt;
    std::vector<int64_t> checksums = {};  // by parameter
  };

  static Values values_of(const Unit& unit);

  Executor& executor_;
  std::map<size_t, std::vector<Entry>> entries_;  // by unit
};

}  // namespace zeroshard
