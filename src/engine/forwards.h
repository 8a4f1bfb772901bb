#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

namespace zeroshard {

// The forwards of units: which are running, when each unit's last one ended, and which wait for their backward.
class Forwards {
 public:
  explicit Forwards(size_t num_units) : ended_(num_units, 0) {}

  void begin(size_t unit) { running_.push_back(unit); }
  // Ends the last running forward of the unit, and forwards inside of it that have failed and so have not ended.
  // Returns whether no forward of the unit is running any more. `has_backward` says whether a backward of this forward
  // is expected.
  bool end(size_t unit, bool has_backward);
  // Forgets the running forwards, because the pass has failed.
  void abandon() { running_.clear(); }
  bool is_running(size_t unit) const;
  // Returns the units whose forward is running, outermost first.
  const std::vector<size_t>& running() const { return running_; }
  // Returns the time of the end of the unit's last forward, counted from 1; 0 if it had none.
  int64_t time_of_end(size_t unit) const { return ended_[unit]; }

  // The backward of the unit's last forward begins. Forgets this forward and all waiting forwards that ended later,
  // because the backward does not need them. Returns the units of these later ones, last first. If no forward of the
  // unit waits for its backward, forgets and returns nothing.
  std::vector<size_t> take(size_t unit);
  // Returns all forwards that wait for their backward, last first, and forgets them.
  std::vector<size_t> take_all();

 private:
  std::vector<size_t> running_;
  std::vector<int64_t> ended_;
  int64_t count_ = 0;            // forwards that have ended
  std::vector<size_t> awaited_;  // forwards that wait for their backward, in the order in which they ended
};

}  // namespace zeroshard
