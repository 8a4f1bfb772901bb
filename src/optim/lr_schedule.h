#pragma once
#include <cstdint>
#include <vector>

#include "zeroshard/config.h"

namespace zeroshard {

// Learning rates as a function of the iteration alone: nothing to save but that number. The formulas are DeepSpeed's.
// Iteration -1 is the time before the first scheduler step; the n-th step (counted from 0) sets iteration n.
class LRSchedule {
 public:
  // `initial_lrs`: the param groups' rates before the schedule touches them. Throws ValueError when empty, and for a
  // list of the configuration that has not one value for each.
  LRSchedule(SchedulerConfig config, std::vector<double> initial_lrs);

  // One rate per param group. Throws ValueError for an iteration below -1.
  std::vector<double> lrs(int64_t iteration) const;

  struct Betas {
    double beta1, beta2;
  };
  // The betas that OneCycle sets beside the rates; nothing for other schedules and without cycle_momentum. Throws
  // ValueError for a param group that there is not.
  std::optional<Betas> betas(int64_t iteration, size_t group = 0) const;

 private:
  SchedulerConfig config_;
  std::vector<double> initial_lrs_;
};

}  // namespace zeroshard
