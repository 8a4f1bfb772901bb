#pragma once
#include <cstdint>
#include <string>

#include "zeroshard/metrics.h"

namespace zeroshard {

struct ProgressState {
  int64_t step = 0, total_steps = 0;
  MetricValues values;
  double seconds_left = -1;  // negative: unknown
};

// Returns for example "step 20/500  loss 3.2101  grad_norm 0.930  lr 3.0e-04  12.3k tok/s  eta 1m20s".
std::string progress_text(const ProgressState& state);

// Returns for example "[====>     ]  40% 20/50  loss 3.2101 ..." in at most `columns` columns. If there is not enough
// room, the bar first shrinks, then disappears, and then the text is cut.
std::string progress_bar(const ProgressState& state, size_t columns);

}  // namespace zeroshard
