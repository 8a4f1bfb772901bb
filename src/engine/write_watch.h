#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "engine/executor.h"

namespace zeroshard {

// Detects writes of users to parameters by the version counters of tensors. Also detects parameters that were given
// other memory. Writes that bypass the counters (tensor.data.mul_) are only detected between begin_reading() and
// end_reading(), which compare checksums of the values.
class WriteWatch {
 public:
  // These numbers say how a parameter was written. kWritten means that it was written in place. kMoved means that it
  // was given other memory (Unit::is_moved()). kRefused means the same as kMoved, but Unit::prepare_take_back() cannot
  // take the values from that memory. written() never returns kRefused.
  static constexpr int64_t kWritten = 1, kMoved = 2, kRefused = 3;

  // Accepts everything that was written so far. `executor` must outlive the object.
  explicit WriteWatch(Executor& executor) : executor_(executor) { accept_all(); }

  // Returns one number for each of Executor::params(): 0, or how it was written since it was last accepted.
  std::vector<int64_t> written() const;
  bool any_written() const;
  bool is_written(ParamPlace place) const;
  void accept(size_t unit);
  // Counts the parameter as written until it is accepted.
  void reject(ParamPlace place) { accepted(place) = ~uint64_t{0}; }
  void accept_all();
  // Says that the engine has written to the parameter. Autograd then refuses a backward that needs the earlier values,
  // as after a step of a torch optimizer. A user's write that was not accepted before stays detected.
  void tell_autograd(ParamPlace place);

  // begin_reading() begins a reading of an unsharded unit, and end_reading() ends it. During a reading the unit's
  // values must not change. Readings may be nested. end_reading() returns the names of the parameters whose values
  // differ from those at the first begin_reading(), and calls Unit::point_back() for them. It returns none if the
  // unit's readings were forgotten, or if the unit is no longer unsharded.
  void begin_reading(size_t unit);
  std::vector<std::string> end_reading(size_t unit);
  // Ends a reading like end_reading(), but does not check the values.
  void abandon_reading(size_t unit);
  // Ends all readings, so that their end_reading() checks nothing. Call it when the engine or all ranks have changed
  // the values.
  void forget_readings() { readings_.clear(); }
  void forget_reading(size_t unit) { readings_.erase(unit); }

 private:
  struct Reading {
    int times;
    std::vector<int64_t> checksums;  // by parameter
  };

  uint64_t version(ParamPlace place) const;
  uint64_t& accepted(ParamPlace place) { return versions_[place.unit][place.param]; }
  std::vector<int64_t> checksums(size_t unit) const;

  Executor& executor_;
  std::vector<std::vector<uint64_t>> versions_;  // [unit][param]
  std::map<size_t, Reading> readings_;           // by unit
};

}  // namespace zeroshard
