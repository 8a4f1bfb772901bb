// Records the metrics of a run that is told on standard input, for tests/python/train/test_metrics.py:
//   write_metrics DIRECTORY TOTAL_STEPS [RESUME_STEP]
// Each line is a step and pairs of a name and a number. Ends without finish() at a line "die".
#include <cstdlib>
#include <iostream>
#include <sstream>

#include "zeroshard/metrics.h"

int main(int argc, char** argv) {
  if (argc < 3) return 2;
  zeroshard::MetricsOptions options;
  options.directory = argv[1];
  options.total_steps = std::atoll(argv[2]);
  if (argc > 3) options.resume_step = std::atoll(argv[3]);
  zeroshard::RunMetrics metrics(options);
  for (std::string line; std::getline(std::cin, line);) {
    if (line == "die") std::_Exit(0);
    std::istringstream fields(line);
    int64_t step = 0;
    fields >> step;
    zeroshard::MetricValues values;
    for (std::string name, value; fields >> name >> value;)
      values.push_back({name, std::strtod(value.c_str(), nullptr)});
    metrics.record(step, values);
  }
  metrics.finish();
}
