#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

namespace zeroshard {

// Records the forwards of units: which ones are running, when the last one of each unit ended, and which ones wait for
// their backward. If forwards of one unit end without a forward of another unit between them, they wait as one forward.
class Forwards {
 public:
  explicit Forwards(size_t num_units) : ended_(num_units, 0) {}

  void begin(size_t unit) { running_.push_back(unit); }
  // Ends the innermost running forward of the unit, and the forwards inside of it that have not ended because they have
  // failed. `has_backward` says whether a backward of this forward is expected. Returns whether no forward of the unit
  // is running any more.
  bool end(size_t unit, bool has_backward);
  // Forgets the running forwards. Call it when the pass has failed.
  void abandon() { running_.clear(); }
  bool is_running(size_t unit) const;
  // Returns the units whose forward is running, outermost first.
  const std::vector<size_t>& running() const { return running_; }
  // Returns when the unit's last forward ended, or 0 if it had none. The time is counted in forwards of all units: 1
  // for the forward that ended first, 2 for the next one, and so on.
  int64_t time_of_end(size_t unit) const { return ended_[unit]; }

  // Says that the backward of the unit's last waiting forward begins. Backwards come in reverse order of forwards, so
  // waiting forwards that ended after this one will have no backward. Forgets this forward and the later ones, and
  // returns the units of the later ones, last first. If no forward of the unit waits, forgets none and returns an empty
  // vector.
  std::vector<size_t> take(size_t unit);
  // Returns the units of all forwards that wait for their backward, last first, and forgets these forwards.
  std::vector<size_t> take_all();

 private:
  std::vector<size_t> running_;
  std::vector<int64_t> ended_;
  int64_t count_ = 0;            // forwards that have ended
  std::vector<size_t> awaited_;  // units of the forwards that wait for their backward, in the order of their ends
};

}  // namespace zeroshard
