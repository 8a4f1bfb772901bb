#pragma once
#include <string>

#include "monitor/sink.h"

namespace zeroshard {

// Returns an empty series for each metric that the plot shows.
SeriesByName plotted_series();

// Returns an SVG picture. It shows loss and validation loss over steps and, if there are any, tokens per second below.
// If there are no records, it says so. Equal metrics give equal bytes. The picture has a background of its own, and
// other colours for a dark page. A value that is not finite breaks the line, and is shown as a cross at the upper edge.
// `total_steps` is shown as the length of the run if it is not 0.
std::string plot_svg(const SeriesByName& series, int64_t total_steps);

// About `count` round numbers from `low` to `high`. They are multiples of a spacing, which is 1, 2 or 5 times a power
// of ten, and at least `least`.
struct Ticks {
  double spacing = 1;
  std::vector<double> values;
};
Ticks round_ticks(double low, double high, int count, double least = 0);

}  // namespace zeroshard
