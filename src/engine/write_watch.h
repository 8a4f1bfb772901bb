#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "engine/executor.h"

namespace zeroshard {

// Notices writes of users to parameters through the version counters of tensors, and parameters that are given other
// memory. Writes around the counters (tensor.data.mul_) are seen only for values gathered for reading, which have a
// checksum.
class WriteWatch {
 public:
  // How a parameter was written. kRefused: kMoved, and the values cannot be taken.
  static constexpr int64_t kWritten = 1, kMoved = 2, kRefused = 3;

  // From now on. `executor` outlives it.
  explicit WriteWatch(Executor& executor) : executor_(executor) { accept_all(); }

  // Per unit and parameter, one after another: 0, or how it was written since it was accepted.
  std::vector<int64_t> written() const;
  bool any_written() const;
  bool is_written(size_t unit, size_t param) const;
  void accept(size_t unit);
  // It counts as written until it is accepted.
  void reject(size_t unit, size_t param) { versions_[unit][param] = ~uint64_t{0}; }
  void accept_all();
  // The engine has written to the parameter. As behind an optimizer of torch's, autograd then refuses a backward that
  // needs the values before.
  void tell_autograd(size_t unit, size_t param);

  // Around reading: `unit` is whole, and must have the same values when end_reading() has been called equally often.
  // Then end_reading() returns the names of changed parameters; parameters that are in other memory lose it.
  void begin_reading(size_t unit);
  std::vector<std::string> end_reading(size_t unit);
  // In place of end_reading(), without looking.
  void abandon_reading(size_t unit);
  // The values were changed rightfully.
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
