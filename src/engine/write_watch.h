#pragma once
#include <cstdint>
#include <vector>

#include "engine/executor.h"

namespace zeroshard {

// Detects writes of users to parameters by the version counters of tensors. Also detects parameters that were given
// other memory. Does not detect writes that bypass the counters (tensor.data.mul_).
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

 private:
  uint64_t version(ParamPlace place) const;
  uint64_t& accepted(ParamPlace place) { return versions_[place.unit][place.param]; }

  Executor& executor_;
  std::vector<std::vector<uint64_t>> versions_;  // [unit][param]
};

}  // namespace zeroshard
