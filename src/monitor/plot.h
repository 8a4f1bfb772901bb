#pragma once
#include <string>

#include "monitor/sink.h"

namespace zeroshard {

// Returns an empty series for each metric that the plot shows.
SeriesByName plotted_series();

// Returns an SVG picture of loss and validation loss over steps, with tokens per second below. A metric without records
// is left out. If no metric has records, the picture says so. Equal metrics give equal bytes. The picture has a
// background of its own, and dark colours in a browser that prefers them. The first value of a group (see Series) that
// is not finite breaks the line, and is shown as a cross at the upper edge. `total_steps` is shown as the length of the
// run if it is not 0.
std::string plot_svg(const SeriesByName& series, int64_t total_steps);

// The ticks of an axis, which are multiples of `spacing`. The spacing is 1, 2 or 5 times a power of ten.
struct Ticks {
  double spacing = 1;
  std::vector<double> values;
};
// Returns about `count` ticks from `low` to `high`. Their spacing is at least `least`.
Ticks round_ticks(double low, double high, int count, double least = 0);

}  // namespace zeroshard
