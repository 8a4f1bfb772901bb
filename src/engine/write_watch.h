#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "engine/executor.h"

namespace zeroshard {

// Detects writes of users to parameters by the version counters of tensors, and parameters that were given other
// memory. Writes that bypass the counters (tensor.data.mul_) are only detected for values gathered for reading, because
// these have a checksum.
class WriteWatch {
 public:
  // How a parameter was written. kMoved means that it was given other memory. kRefused means the same, but its values
  // cannot be taken from there.
  static constexpr int64_t kWritten = 1, kMoved = 2, kRefused = 3;

  // Watches from now on. `executor` must outlive it.
  explicit WriteWatch(Executor& executor) : executor_(executor) { accept_all(); }

  // Returns one number for each parameter of each unit, in order: 0, or how it was written since it was last accepted.
  std::vector<int64_t> written() const;
  bool any_written() const;
  bool is_written(size_t unit, size_t param) const;
  void accept(size_t unit);
  // Counts the parameter as written until it is accepted.
  void reject(size_t unit, size_t param) { versions_[unit][param] = ~uint64_t{0}; }
  void accept_all();
  // The engine has written to the parameter. Autograd then refuses a backward that needs the earlier values, like after
  // a step of a torch optimizer.
  void tell_autograd(size_t unit, size_t param);

  // begin_reading() and end_reading() bound a reading of an unsharded unit, during which its values must not change.
  // Readings may be nested. end_reading() returns the names of the parameters whose values differ from those at the
  // first begin_reading(). If such a parameter was moved to other memory, it is moved back to the unit's.
  void begin_reading(size_t unit);
  std::vector<std::string> end_reading(size_t unit);
  // Ends a reading like end_reading(), but does not check the values.
  void abandon_reading(size_t unit);
  // The values were changed legitimately, so readings do not check them.
  void forget_readings() { readings_.clear(); }
  void forget_reading(size_t unit) { readings_.erase(unit); }

 private:
  struct Reading {
    int times;
    std::vector<int64_t> checksums;  // by parameter
  };

  uint64_t version(size_t unit, size_t param) const;
  std::vector<int64_t> checksums(size_t unit) const;

  Executor& executor_;
  std::vector<std::vector<uint64_t>> versions_;  // [unit][param]
  std::map<size_t, Reading> readings_;           // by unit
};

}  // namespace zeroshard
