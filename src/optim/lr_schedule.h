#pragma once
#include <cstdint>
#include <vector>

#include "zeroshard/config.h"

namespace zeroshard {

// A learning-rate schedule with DeepSpeed's formulas. Rates depend only on the iteration, so a checkpoint needs to save
// only the iteration. The iteration is -1 before the first scheduler step. The n-th scheduler step, counted from 0,
// sets the iteration to n.
class LRSchedule {
 public:
  // `initial_lrs` are the param groups' rates before the schedule changes them. Throws ValueError if `initial_lrs` is
  // empty, or if a list in the configuration does not have one value for each param group.
  LRSchedule(SchedulerConfig config, std::vector<double> initial_lrs);

  // Returns one rate for each param group. Throws ValueError if `iteration` is below -1.
  std::vector<double> lrs(int64_t iteration) const;

  struct Betas {
    double beta1, beta2;
  };
  // Returns the betas that OneCycle sets in addition to the rates; beta2 is always 0.99. Returns nothing for other
  // schedules, or without cycle_momentum. Throws ValueError if there is no param group `group`, or if `iteration` is
  // below -1.
  std::optional<Betas> betas(int64_t iteration, size_t group = 0) const;

 private:
  SchedulerConfig config_;
  std::vector<double> initial_lrs_;
};

}  // namespace zeroshard
